// What several forms have in common: sizes, heads, rotary positions, windows, activations, and the
// names of llama, from which those of its relatives differ little. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/huggingface/config_reader.h"
#include "checkpoint/huggingface/form.h"
#include "nlohmann/json.hpp"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::checkpoint {

// The numbers of layers, heads and channels, ffn_hidden and context, under the names that most
// configurations have. `kv_heads`: of a file that does not tell; 0: as many as heads.
void ReadUsualSizes(ConfigReader& config, int64_t kv_heads, v1::ModelSpec* model);
// The same keys for a file, behind those that say what it describes.
nlohmann::ordered_json UsualKeys(const v1::ModelSpec& model, const char* model_type,
                                 const char* model_class, const std::string& hidden_act);

// Checks what the engine needs of any model's heads. REQUIRES: heads and kv_heads are set.
void CheckHeadSize(ConfigReader& config, const v1::ModelSpec& model, int64_t head);
// The same of hidden / heads. The size of a head, or 0 after a fault, since
// sizes may be 1 then, and further messages about them would mislead. REQUIRES: sizes are set.
int64_t CheckedHead(ConfigReader& config, const v1::ModelSpec& model);
// The same where a file may name another size than hidden / heads. `usual`: of a file that does not
// tell; 0: hidden / heads.
int64_t ReadHeadDim(ConfigReader& config, int64_t usual, v1::ModelSpec* model);
// The same where it may not.
int64_t CheckedPlainHead(ConfigReader& config, const v1::ModelSpec& model);

// What a file means that does not tell.
struct UsualRotary {
  double theta = 10000;
  double share = 1;  // the part of each head's channels that is turned
};
// rope_theta and its scaling, in the forms of transformers 4 and 5. Returns the share of a head's
// channels that turns.
double ReadRotary(ConfigReader& config, const UsualRotary& usual, v1::ModelSpec* model);
// All channels turn.
void ReadWholeRotary(ConfigReader& config, int64_t head, v1::ModelSpec* model);
// int(head * share) channels turn, as transformers counts them. `head` may be 0: nothing is set.
void SetRotaryDim(ConfigReader& config, int64_t head, double share, v1::ModelSpec* model);
// The share with which transformers counts the model's channels.
double RotaryShare(const v1::ModelSpec& model);
// rope_theta and rope_scaling, which all versions of transformers read.
void WriteRotary(const v1::ModelSpec& model, nlohmann::ordered_json* json);

int64_t HeadOf(const v1::ModelSpec& model);
double NormEpsOf(const v1::ModelSpec& model, double usual);
double RopeThetaOf(const v1::ModelSpec& model);

// The window of attention that sliding_window names, the same in every layer. `usual`: of a file
// that does not have the key; null stands for none.
void ReadWindow(ConfigReader& config, int64_t usual, v1::ModelSpec* model);
// qwen's: use_sliding_window, with layer_types (transformers 5) or max_window_layers.
void ReadSwitchedWindow(ConfigReader& config, v1::ModelSpec* model);
void WriteSwitchedWindow(const v1::ModelSpec& model, nlohmann::ordered_json* json);

// A function of the feed-forward part, and the names that transformers has for it; the first is
// written.
struct ActivationNames {
  v1::Activation activation;
  std::vector<std::string> names;
};
// The first of `known` is the architecture's own, which stays unset. `usual`: of a file that does
// not tell.
void ReadActivation(ConfigReader& config, const char* key, const std::string& usual,
                    const std::vector<ActivationNames>& known, v1::ModelSpec* model);
// Sets the function of this name, which need not be the value of a key. Whether it is known.
bool SetActivation(const std::string& name, const std::vector<ActivationNames>& known,
                   v1::ModelSpec* model);
std::string ActivationText(const v1::ModelSpec& model, const std::vector<ActivationNames>& known);

// INVALID_ARGUMENT for another number of key heads than of query heads.
absl::Status CheckUngrouped(const char* model_type, const v1::ModelSpec& model);
// INVALID_ARGUMENT for a value that transformers' class has as a constant.
absl::Status CheckConstant(const char* model_type, const char* key, double value, double constant);

// A weight, and its bias.
void AddPair(const std::string& theirs, const std::string& ours, std::vector<FormRow>* rows);
// A weight that has none.
void AddWeight(const std::string& theirs, const std::string& ours, std::vector<FormRow>* rows);

// llama's names: prefix "model.", no biases, two norms in a layer.
FormTable LlamaTable();

}  // namespace tercio::checkpoint
