#include "cli/evaluation_json.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "plan/quality.h"

namespace tercio::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson AverageToJson(const plan::ClassScores& scores) {
  return {{"precision", scores.precision}, {"recall", scores.recall}, {"f1", scores.f1}};
}

OrderedJson ConfusionToJson(const v1::Confusion& confusion) {
  OrderedJson rows = OrderedJson::array();
  for (int label = 0; label < confusion.classes(); ++label) {
    OrderedJson row = OrderedJson::array();
    for (int predicted = 0; predicted < confusion.classes(); ++predicted) {
      row.push_back(confusion.counts(label * confusion.classes() + predicted));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

std::string LabelText(const v1::ModelSpec& model, int label) {
  return label < model.label_names_size() ? model.label_names(label) : absl::StrCat(label);
}

nlohmann::ordered_json EvaluationToJson(const v1::Evaluation& evaluation,
                                        const v1::ModelSpec& model) {
  OrderedJson json = {{"step", evaluation.step()},
                      {"loss", std::isfinite(evaluation.loss()) ? OrderedJson(evaluation.loss())
                                                                : OrderedJson(nullptr)}};
  for (const char* key : {"accuracy", "per_class", "macro", "weighted", "confusion"}) {
    json[key] = nullptr;
  }
  // A coordinator of another version may send anything.
  if (!plan::IsConfusion(evaluation.confusion())) return json;
  const plan::Quality quality = plan::QualityOf(evaluation.confusion());
  json["accuracy"] = quality.accuracy;
  json["per_class"] = OrderedJson::object();
  for (size_t label = 0; label < quality.classes.size(); ++label) {
    const plan::ClassScores& scores = quality.classes[label];
    OrderedJson entry = AverageToJson(scores);
    entry["support"] = scores.support;
    json["per_class"][LabelText(model, static_cast<int>(label))] = std::move(entry);
  }
  json["macro"] = AverageToJson(quality.macro);
  json["weighted"] = AverageToJson(quality.weighted);
  json["confusion"] = ConfusionToJson(evaluation.confusion());
  return json;
}

}  // namespace tercio::cli
