#include "common/metrics/process_metrics.h"

#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/file.h"

namespace tercio {
namespace {

// Seconds since 1970 at which the machine booted.
std::optional<double> BootTime() {
  const absl::StatusOr<std::string> stat = ReadFile("/proc/stat");
  if (!stat.ok()) return std::nullopt;
  for (const absl::string_view line : absl::StrSplit(*stat, '\n')) {
    double seconds = 0;
    // The kernel gives the time of boot only here.
    if (line.substr(0, 6) == "btime " && absl::SimpleAtod(line.substr(6), &seconds)) return seconds;
  }
  return std::nullopt;
}

// The fields of proc(5)'s stat from the third on: they follow a name with arbitrary characters.
std::vector<double> StatFields() {
  std::vector<double> fields;
  const absl::StatusOr<std::string> stat = ReadFile("/proc/self/stat");
  if (!stat.ok()) return fields;
  // The name may contain brackets and blanks: the last bracket ends it.
  const std::string rest = stat->substr(stat->rfind(')') + 2);
  for (const absl::string_view text : absl::StrSplit(rest, ' ')) {
    double value = 0;
    (void)absl::SimpleAtod(text, &value);  // the process state is a letter
    fields.push_back(value);
  }
  return fields;
}

// Metrics must not fail where a file is missing: the page leaves them out.
std::optional<double> NotAfter(const std::string& path) {
  if (path.empty()) return std::nullopt;
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return std::nullopt;
  const std::unique_ptr<BIO, decltype(&BIO_free)> memory(
      BIO_new_mem_buf(text->data(), static_cast<int>(text->size())), BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(memory.get(), nullptr, nullptr, nullptr), X509_free);
  std::tm time = {};
  if (certificate == nullptr ||
      ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &time) != 1) {
    return std::nullopt;
  }
  return static_cast<double>(timegm(&time));
}

}  // namespace

void AddProcessMetrics(absl::string_view version, absl::string_view commit, MetricsPage* page) {
  page->Set("tercio_build_info", {commit, version}, 1);
  // The kernel counts in ticks, whose length it tells.
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  const std::vector<double> stat = StatFields();
  // Field numbers of proc(5), less the three that are missing in front.
  if (stat.size() > 21) {
    page->Set("process_cpu_seconds_total", (stat[14 - 3] + stat[15 - 3]) / ticks);
    page->Set("process_threads", stat[20 - 3]);
    page->Set("process_virtual_memory_bytes", stat[23 - 3]);
    page->Set("process_resident_memory_bytes",
              stat[24 - 3] * static_cast<double>(sysconf(_SC_PAGESIZE)));
    if (const std::optional<double> boot = BootTime(); boot.has_value()) {
      page->Set("process_start_time_seconds", *boot + stat[22 - 3] / ticks);
    }
  }
  // The count includes the descriptor of this very listing.
  page->Set("process_open_fds", static_cast<double>(ListDirectory("/proc/self/fd").size()));
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    page->Set("process_max_fds", static_cast<double>(files.rlim_cur));
  }
}

void AddCertificateMetrics(const std::string& certificate, const std::string& authority,
                           MetricsPage* page) {
  // Both may expire, and alerts have to tell which.
  if (const std::optional<double> time = NotAfter(certificate); time.has_value()) {
    page->Set("tercio_certificate_not_after_timestamp_seconds", {"certificate"}, *time);
  }
  if (const std::optional<double> time = NotAfter(authority); time.has_value()) {
    page->Set("tercio_certificate_not_after_timestamp_seconds", {"authority"}, *time);
  }
}

}  // namespace tercio
