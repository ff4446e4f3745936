#include "checkpoint/huggingface/peft_import.h"

#include <memory>
#include <utility>
#include <vector>

#include "checkpoint/adapted_weights.h"
#include "checkpoint/huggingface/peft_adapter.h"
#include "checkpoint/manifest.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {

absl::StatusOr<ImportResult> ImportPeft(const std::string& directory, const std::string& base,
                                        const std::string& output_path,
                                        const ImportOptions& options) {
  std::string model = base;
  if (model.empty()) {
    TERCIO_ASSIGN_OR_RETURN(model, DirectoryOfPeftBase(directory));
  }
  TERCIO_ASSIGN_OR_RETURN(auto source, OpenWeightSource(model, DigestCheck::kEveryByte));
  TERCIO_ASSIGN_OR_RETURN(source,
                          WithAdapter(std::move(source), directory, DigestCheck::kEveryByte));
  TERCIO_ASSIGN_OR_RETURN(const auto output,
                          OutputDirectory::Create(output_path, FileDigests::kAll));
  const std::vector<plan::LogicalTensor> tensors = plan::ModelTensors(source->model());
  ImportResult result;
  result.model = source->model();
  for (const plan::LogicalTensor& tensor : tensors) {
    result.parameters += tensor.rows * tensor.columns;
  }
  Manifest manifest;
  TERCIO_RETURN_IF_ERROR(WriteImportedWeights(*source, tensors, options, &manifest, output.get()));
  TERCIO_RETURN_IF_ERROR(CommitImport(options, &manifest, output.get()));
  result.bytes = output->bytes();
  return result;
}

}  // namespace tercio::checkpoint
