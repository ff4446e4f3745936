// What transformers' form of an architecture is: config.json in and out, and the names of the
// tensors. One value for each architecture, in a file of its own in forms/; everything else that
// reads or writes Hugging Face directories asks it, and compares no architecture. Pure.
//
// A form may be there before the engine trains its architecture: directories of it are refused
// until the architecture has its word in plan/names.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "checkpoint/huggingface/config_reader.h"
#include "nlohmann/json.hpp"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// How the rows of a file's tensor hold those of canonical tensors (plan/model_tensors.h).
enum class RowForm {
  kPlain,        // one canonical tensor above the other
  kTransposed,   // the same as columns: [inputs, outputs]
  kInterleaved,  // for each head its rows of the first, then of the second, ...
};

// One tensor of a file. '*' stands for the number of the layer: in `theirs` within its stream
// (model/architecture.h), in `ours` within the model. A row whose canonical tensors the model lacks
// is left out.
struct FormRow {
  std::string theirs;  // without the prefix of the base model
  std::vector<std::string> ours;
  RowForm form = RowForm::kPlain;
  int stream = 0;  // whose layers have it
};

struct FormTable {
  const char* prefix = "";  // all names begin with it, but for those beside the base model
  std::vector<FormRow> embedding;
  std::vector<FormRow> layer;
  std::vector<FormRow> end;
  std::vector<const char*> beside = {"lm_head."};  // beginnings of names that have no prefix
  std::vector<const char*> ignored;  // buffers of old versions, which carry no information
  std::vector<std::pair<const char*, const char*>> copies;   // copy, original
  std::vector<std::pair<const char*, const char*>> tied;     // the same where the head is tied
  std::vector<std::pair<const char*, const char*>> renamed;  // another version's name, ours
  std::vector<const char*> other_heads;  // beginnings of the names of other tasks' heads
};

struct HuggingFaceForm {
  v1::Architecture architecture = v1::ARCHITECTURE_UNSPECIFIED;
  std::vector<const char*> model_types;  // values of this key of config.json
  const char* context_key = "max_position_embeddings";
  int64_t usual_context = 0;  // of a file without this key; 0: all files have it
  // transformers' class has biases whatever the model has: those it lacks are written as zeros.
  bool always_biased = false;

  // Sets what the file says of the model but vocab_size. Values that are the architecture's
  // defaults stay unset. After a fault any value may be set.
  void (*read)(ConfigReader& config, v1::ModelSpec* model) = nullptr;
  // All keys but those that every file has. REQUIRES: `check` accepts the model.
  nlohmann::ordered_json (*write)(const v1::ModelSpec& model) = nullptr;
  // What changes besides the context in the file that training started from; may be null.
  void (*change)(const v1::ModelSpec& model, nlohmann::ordered_json* config) = nullptr;
  // INVALID_ARGUMENT for a model that the form cannot express; null: it expresses all of them.
  absl::Status (*check)(const v1::ModelSpec& model) = nullptr;
  const FormTable& (*table)(const v1::ModelSpec& model) = nullptr;

  // For architectures with several tasks; null: there is one.
  bool (*is_base)(const nlohmann::json& config) = nullptr;  // it names no task
  // The model with the heads that a file of this one may hold beside its own.
  v1::ModelSpec (*with_other_heads)(const v1::ModelSpec& model) = nullptr;
  // Adds to the model what only the names of the stored tensors tell.
  void (*complete)(absl::FunctionRef<bool(std::string_view name)> has,
                   v1::ModelSpec* model) = nullptr;
};

// All forms, in the order in which messages list them.
absl::Span<const HuggingFaceForm* const> HuggingFaceForms();

// Null: there is none.
const HuggingFaceForm* FindForm(v1::Architecture architecture);
const HuggingFaceForm* FindForm(std::string_view model_type);

// REQUIRES: the architecture has a form.
const HuggingFaceForm& FormOf(const v1::ModelSpec& model);

}  // namespace tercio::checkpoint
