#include "common/gpus/driver_library.h"

#include <cctype>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/gpus/gpu_faults.h"

namespace tercio {
namespace {

std::string PackageName(int runtime) {
  return absl::StrCat("cuda-compat-", runtime / 1000, "-", runtime % 1000 / 10);
}

// A letter or two, and a number: "H100", "L40S", "GB200".
bool IsSeriesOfDataCentres(std::string_view word) {
  size_t letters = 0;
  while (letters < word.size() && std::isupper(static_cast<unsigned char>(word[letters]))) {
    ++letters;
  }
  size_t digits = 0;
  while (letters + digits < word.size() &&
         std::isdigit(static_cast<unsigned char>(word[letters + digits]))) {
    ++digits;
  }
  const std::string_view series = word.substr(0, letters);
  // Workstations have a T1000 and a T400.
  if (series == "T") return digits > 0 && digits <= 2;
  for (const std::string_view known : {"A", "B", "H", "L", "P", "V", "GB", "GH"}) {
    if (series == known) return digits > 0 && digits <= 3;
  }
  return false;
}

}  // namespace

bool IsDataCentreGpu(std::string_view model) {
  if (model.starts_with("Tesla ")) return true;
  // GeForce, RTX, TITAN and Quadro come next in other names.
  constexpr std::string_view kMaker = "NVIDIA ";
  if (model.starts_with(kMaker)) model.remove_prefix(kMaker.size());
  const size_t end = model.find_first_of(" -");
  return IsSeriesOfDataCentres(model.substr(0, end));
}

absl::StatusOr<std::string> ChooseDriverLibrary(const DriverQuestion& question) {
  const absl::Status fits = CheckDriver(question.driver, question.driver_cuda, question.runtime);
  if (fits.ok()) return "";
  for (const std::string& model : question.models) {
    if (IsDataCentreGpu(model)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(fits.message()), "; NVIDIA's package ",
                     PackageName(question.runtime), " does not support a ", model));
  }
  if (!question.compat_folder.empty()) return question.compat_folder;
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(fits.message()), "; or install NVIDIA's package ",
                   PackageName(question.runtime), ", which this driver may support"));
}

std::string FindCompatFolder(const std::string& libraries, int runtime) {
  const char* named = std::getenv("TERCIO_CUDA_COMPAT");
  const std::string installed =
      absl::StrCat("/usr/local/cuda-", runtime / 1000, ".", runtime % 1000 / 10, "/compat");
  for (const std::string& folder :
       {std::string(named == nullptr ? "" : named), libraries + "/compat", installed}) {
    if (!folder.empty() && PathExists(folder + "/libcuda.so.1")) return folder;
  }
  return "";
}

DriverQuestion QuestionOf(const Gpus& gpus, int runtime, const std::string& libraries) {
  DriverQuestion question = {gpus.driver, gpus.cuda_version, runtime, {}, ""};
  for (const Gpu& gpu : gpus.list) question.models.push_back(gpu.model);
  question.compat_folder = FindCompatFolder(libraries, runtime);
  return question;
}

void PutLibrariesFirst(const std::string& folder) {
  const char* before = std::getenv("LD_LIBRARY_PATH");
  const bool has_any = before != nullptr && *before != 0;
  const std::string path = has_any ? absl::StrCat(folder, ":", before) : folder;
  setenv("LD_LIBRARY_PATH", path.c_str(), /*overwrite=*/1);
}

}  // namespace tercio
