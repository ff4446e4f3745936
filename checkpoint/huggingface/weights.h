// A Hugging Face directory as a source of weights: config.json, and model.safetensors or the files
// that model.safetensors.index.json names. Files are mapped; numbers become fp32 as they are read.
//
// The files are not trusted: every offset, shape, dtype and name is checked before use, and nothing
// is allocated for a tensor that the files have no bytes for. A file that shrinks while it is
// mapped ends the process (SIGBUS), as with any mapping.
//
// Threads: const methods from any thread.
// Errors: NOT_FOUND for a missing file; DATA_LOSS for a damaged one, and for a tensor that is
// missing, extra, misshapen or given twice; INVALID_ARGUMENT for what this version does not support
// (a dtype, an architecture). Tensors are named, at most a few of them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/float_format.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weight_source.h"
#include "common/file.h"

namespace tercio::checkpoint {

inline constexpr char kHuggingFaceFile[] = "model.safetensors";
inline constexpr char kHuggingFaceIndex[] = "model.safetensors.index.json";

class HuggingFaceModel : public WeightSource {
 public:
  static absl::StatusOr<std::unique_ptr<HuggingFaceModel>> Open(const std::string& directory);

  const v1::ModelSpec& model() const override { return model_; }
  // NOT_FOUND: its tokenizer has another form.
  absl::StatusOr<std::string> TokenizerJson() const override;
  bool Has(const std::string& tensor) const override { return places_.contains(tensor); }
  absl::Status ReadSlice(const v1::TensorSlice& slice, float* out) const override;

  struct File {
    std::string name;
    std::shared_ptr<const MappedFile> mapping;
    SafetensorsLayout layout;
    std::string_view header() const {
      return mapping->content().substr(0, static_cast<size_t>(layout.data_begin));
    }
    std::string_view bytes(const TensorEntry& entry) const {
      return mapping->content().substr(static_cast<size_t>(layout.data_begin + entry.begin),
                                       static_cast<size_t>(entry.end - entry.begin));
    }
  };
  const std::vector<File>& files() const { return files_; }

 private:
  // The place of a canonical tensor's values: those of output r and input c at element
  // (begin + r) * inputs + c of `data`, or transposed.
  struct Place {
    const char* data = nullptr;
    FloatFormat format = FloatFormat::kF32;
    bool transposed = false;
    bool is_vector = false;
    int64_t begin = 0;
    int64_t rows = 0;
    int64_t inputs = 1;
    int64_t outputs = 0;
  };

  absl::Status OpenFiles();
  absl::Status OpenFile(const std::string& name);
  absl::Status CheckIndex(const std::map<std::string, std::string>& weight_map) const;
  absl::Status PlaceTensors();
  static bool HasPretrainingHeads(const std::vector<File>& files, const v1::ModelSpec& model);
  void ReadTransposed(const Place& place, const v1::TensorSlice& slice, float* out) const;

  std::string directory_;
  v1::ModelSpec model_;
  bool base_ = false;  // without the tensors of a task
  std::vector<File> files_;
  std::map<std::string, Place> places_;
};

// The parsed weight map of model.safetensors.index.json: name of a tensor -> file. DATA_LOSS when
// it is not one, or names a file outside of the directory.
absl::StatusOr<std::map<std::string, std::string>> ParseWeightMap(std::string_view json,
                                                                  const std::string& path);

}  // namespace tercio::checkpoint
