// The architectures that this version knows: of each its description, and what a job's model
// section may say of it (defaults, the keys that only some have, published sizes). Each stands in a
// file of this folder; readers of jobs and checkpoints, plans and the engine ask here, and compare
// no architecture. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "model/architecture.h"
#include "proto/tercio/v1/job.pb.h"

namespace tercio::model {

// Published sizes. A preset is a model like any other: each of its sizes may be changed.
struct Preset {
  const char* name;
  int layers, hidden, heads, kv_heads, ffn_hidden, context, vocab_size;
  double rope_theta = 0;
  bool tied_head = true;
  void (*further)(v1::ModelSpec* model) = nullptr;  // what only some architectures have
};

struct ArchitectureFacts {
  v1::Architecture architecture = v1::ARCHITECTURE_UNSPECIFIED;
  Architecture (*describe)(const v1::ModelSpec& model) = nullptr;
  bool bias = true;
  bool free_bias = false;  // a job may choose
  bool tied_head = true;
  bool free_head = true;     // a job may choose
  bool grouped_keys = true;  // fewer heads of keys than of queries are possible
  double norm_eps = 1e-5;    // as published; another one changes what loaded weights compute
  double rope_theta = 0;     // of a job that names none; 0: positions are not rotary
  bool gated = false;        // three matrices in the feed-forward part
  v1::Activation activation = v1::ACTIVATION_GELU_TANH;  // of a job that names none
  std::vector<v1::Activation> further_activations;       // that a job may name
  std::vector<std::string_view> keys;                    // that only some architectures have
  std::vector<Preset> presets;

  bool Has(std::string_view key) const;
};

// All architectures that have a description, in the order in which messages list them.
const std::vector<const ArchitectureFacts*>& AllArchitectures();

// gpt2's for an unset architecture, and for numbers of later versions.
const ArchitectureFacts& FactsOf(v1::Architecture architecture);

// For tests of models that no architecture has: while it lives, `facts` stand for their
// architecture. Made before, and destroyed after, everything else that asks; `facts` outlive it.
class ScopedArchitecture {
 public:
  explicit ScopedArchitecture(const ArchitectureFacts& facts);
  ~ScopedArchitecture();
  ScopedArchitecture(const ScopedArchitecture&) = delete;
  ScopedArchitecture& operator=(const ScopedArchitecture&) = delete;
};

struct NamedPreset {
  const ArchitectureFacts* facts;
  const Preset* preset;
};
std::optional<NamedPreset> FindPreset(std::string_view name);
v1::ModelSpec ModelOf(const NamedPreset& named);

// The usual width of the feed-forward part: 4 hidden, or with a gate two thirds of it, in steps of
// 64, since there are three matrices.
int64_t UsualFfnHidden(const v1::ModelSpec& model);

}  // namespace tercio::model
