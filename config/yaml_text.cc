#include "config/yaml_text.h"

#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/utf8.h"
#include "nlohmann/json.hpp"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/yaml.h"

namespace tercio::config {
namespace {

// The parser wants all events handled; only the starts of documents are of interest.
class DocumentStarts : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { line = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  int line = 0;
};

}  // namespace

absl::Status CheckUtf8(std::string_view text, const std::string& name) {
  int line = 1;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    if (!point.valid) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", line, ": not UTF-8; convert the file"));
    }
    line += point.code == '\n';
    at += point.length;
  }
  return absl::OkStatus();
}

// Not by YAML::LoadAll, which never ends on some texts that are not YAML: it
// continues where the parser has stopped short.
int LineOfSecondDocument(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  if (!parser.HandleNextDocument(starts) || !parser.HandleNextDocument(starts)) return 0;
  return starts.line;
}

std::string Number(double value) { return nlohmann::json(value).dump(); }

}  // namespace tercio::config
