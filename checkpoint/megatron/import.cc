#include "checkpoint/megatron/import.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/megatron/weights.h"
#include "checkpoint/output_directory.h"
#include "common/status_macros.h"
#include "plan/model_tensors.h"

namespace tercio::checkpoint {

absl::StatusOr<ImportResult> ImportMegatron(const std::string& directory,
                                            const std::string& output_path,
                                            const ImportOptions& options) {
  // All files are checked before anything is written.
  TERCIO_ASSIGN_OR_RETURN(const auto model, MegatronModel::Open(directory));
  TERCIO_ASSIGN_OR_RETURN(const auto output,
                          OutputDirectory::Create(output_path, FileDigests::kAll));
  ImportResult result;
  result.model = model->model();
  result.parameters = plan::ParameterCount(model->model());
  for (const std::string& note : NotesAbout(*model, model->model())) {
    result.notes.push_back(absl::StrCat(directory, ": ", note));
  }
  Manifest manifest;
  TERCIO_RETURN_IF_ERROR(WriteImportedWeights(*model, plan::ModelTensors(model->model()), options,
                                              &manifest, output.get()));
  TERCIO_RETURN_IF_ERROR(CommitImport(options, &manifest, output.get()));
  result.bytes = output->bytes();
  return result;
}

}  // namespace tercio::checkpoint
