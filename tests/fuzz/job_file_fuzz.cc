// Job files: what is accepted is written as YAML that reads back as the same job.
#include <cstddef>
#include <cstdint>
#include <string>

#include "config/job_file.h"
#include "tests/fuzz/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tercio;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto spec = config::ParseJobText(text, "job.yaml", "/nowhere", {});
  if (!spec.ok()) return 0;
  const auto again = config::ParseJobText(config::EffectiveYaml(*spec), "job.yaml", "/", {});
  fuzz::Expect(again.ok(), "the effective job can be read");
  fuzz::Expect(again->SerializeAsString() == spec->SerializeAsString(), "it is the same job");
  return 0;
}
