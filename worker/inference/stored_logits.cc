#include "worker/inference/stored_logits.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "checkpoint/base_digest.h"
#include "checkpoint/logits/reader.h"
#include "checkpoint/logits/writer.h"
#include "common/check.h"
#include "common/file.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "data/chat_dataset.h"
#include "data/sample_sources.h"
#include "plan/distillation.h"
#include "plan/names.h"
#include "plan/state_digest.h"
#include "tokenizer/tokenizer.h"
#include "worker/inference/teacher_pass.h"

namespace tercio::inference {
namespace {

int64_t PredictedIn(const data::Sample& sample) {
  return static_cast<int64_t>(sample.targets.size()) -
         std::count(sample.targets.begin(), sample.targets.end(), data::kNoTarget);
}

absl::Status CheckFits(const OpenedModel& teacher, const v1::JobSpec& job,
                       const data::PreparedData& data) {
  const v1::ModelSpec& model = teacher.spec();
  const auto fault = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("the teacher in ", teacher.directory, " ", what));
  };
  const int64_t vocabulary = plan::VocabularyOf(job, data.vocab_size);
  if (model.vocab_size() != vocabulary) {
    return fault(absl::StrCat("has a vocabulary of ", model.vocab_size(), ", the job one of ",
                              vocabulary, "; a student learns from a teacher of its vocabulary"));
  }
  if (data.vocab_size > model.vocab_size()) {
    return fault(absl::StrCat("has a vocabulary of ", model.vocab_size(),
                              ", the job's data one of ", data.vocab_size,
                              "; it cannot read all of the data's tokens"));
  }
  if (job.model().context() > model.context()) {
    return fault(absl::StrCat("has a context of ", model.context(), ", the job one of ",
                              job.model().context(), "; use a shorter model.context"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DigestOfTeacher(const OpenedModel& teacher) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t digest, checkpoint::DigestOfWeights(*teacher.weights));
  return plan::StateDigestText(digest);
}

// Tokens that are predicted from the sample `first` on.
int64_t RowsFrom(data::SampleSource& source, int64_t first, int64_t context) {
  int64_t rows = 0;
  data::Sample sample(context);
  for (int64_t i = first; i < source.numbered_samples(); ++i) {
    source.NumberedSample(i, &sample);
    rows += PredictedIn(sample);
  }
  return rows;
}

// A directory that is to be created lies on the disk of the nearest one that is there.
absl::StatusOr<int64_t> FreeBytesFor(const std::string& directory) {
  std::filesystem::path path = std::filesystem::absolute(directory);
  while (path.has_relative_path() && !PathExists(path.string())) path = path.parent_path();
  return FreeBytes(path.string());
}

absl::StatusOr<int64_t> BytesOfFiles(const std::string& directory) {
  std::error_code error;
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    bytes += static_cast<int64_t>(entry.file_size(error));
  }
  if (!error) return bytes;
  return FileError(error.value(), "measure", directory);
}

// Runs the teacher over all samples that the writer lacks.
absl::Status AddAll(TeacherPass& pass, data::SampleSource& source, int64_t context,
                    int64_t total_rows, const LogitsOptions& options,
                    checkpoint::LogitsWriter& writer) {
  const int64_t all = source.numbered_samples();
  std::vector<data::Sample> samples(static_cast<size_t>(pass.samples_at_once()),
                                    data::Sample(context));
  std::vector<LargestLogits> largest;
  while (writer.samples() < all) {
    const int64_t first = writer.samples();
    const int64_t count = std::min(pass.samples_at_once(), all - first);
    for (int64_t i = 0; i < count; ++i) {
      source.NumberedSample(first + i, &samples[static_cast<size_t>(i)]);
    }
    TERCIO_RETURN_IF_ERROR(
        pass.Run(absl::MakeConstSpan(samples).first(static_cast<size_t>(count)), &largest));
    for (const LargestLogits& of_sample : largest) {
      TERCIO_RETURN_IF_ERROR(writer.Add(of_sample.ids, of_sample.logits));
    }
    if (options.progress) options.progress(writer.rows(), total_rows);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<checkpoint::LogitsSubject> LogitsSubjectOf(const v1::JobSpec& job,
                                                          const data::PreparedData& data) {
  if (job.data().chat().packing()) {
    return absl::InvalidArgumentError(
        "data.packing: stored logits are those of single conversations; leave it out, or learn "
        "from the teacher itself (training.distillation.teacher)");
  }
  if (data.numbered.empty()) {
    return absl::InvalidArgumentError(
        "training.distillation: stored logits are those of texts or conversations, each token of "
        "which is predicted from those before it");
  }
  checkpoint::LogitsSubject subject;
  // Data with more ids than the model has is of another vocabulary.
  subject.vocabulary = std::max(plan::VocabularyOf(job, data.vocab_size), data.vocab_size);
  subject.context = job.model().context();
  subject.data = data.digest;
  subject.samples = data.numbered;
  if (data.tokenizer_json.empty()) return subject;
  subject.tokenizer = Sha256Hex(data.tokenizer_json);
  if (!job.data().has_chat()) return subject;
  TERCIO_ASSIGN_OR_RETURN(const tokenizer::Tokenizer tokenizer,
                          tokenizer::Tokenizer::FromJson(data.tokenizer_json));
  TERCIO_ASSIGN_OR_RETURN(const data::ChatRules rules,
                          data::ChatRulesOf(job.data(), subject.context, tokenizer));
  subject.chat_template = std::string(rules.chat_template->name);
  const v1::LossOn loss_on = job.data().chat().loss_on();
  subject.loss_on =
      plan::TextOf(loss_on == v1::LOSS_ON_UNSPECIFIED ? v1::LOSS_ON_ASSISTANT : loss_on);
  return subject;
}

absl::Status CheckStoredLogits(const v1::JobSpec& job, data::PreparedData* data) {
  const v1::DistillationSpec& distillation = job.training().distillation();
  const std::string& directory = distillation.logits();
  if (directory.empty()) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const checkpoint::LogitsSubject subject, LogitsSubjectOf(job, *data));
  TERCIO_ASSIGN_OR_RETURN(const checkpoint::LogitsHeader header,
                          checkpoint::ReadLogitsHeader(directory));
  // What a person can change is compared first, before all of the files are read.
  TERCIO_RETURN_IF_ERROR(checkpoint::CheckSubject(header, subject, directory));
  if (header.k != distillation.top_k()) {
    return absl::InvalidArgumentError(
        absl::StrCat(directory, "/", checkpoint::kLogitsHeader, ": has ", header.k,
                     " logits of each token, the job expects ", distillation.top_k(),
                     "; leave training.distillation.top_k out"));
  }
  TERCIO_ASSIGN_OR_RETURN(const auto logits, checkpoint::StoredLogits::Open(
                                                 directory, checkpoint::DigestCheck::kEveryByte));
  const auto source = data::MakeSampleSource(*data, job);
  data::Sample sample(subject.context);
  for (int64_t i = 0; i < source->numbered_samples(); ++i) {
    source->NumberedSample(i, &sample);
    if (PredictedIn(sample) == logits->RowsOf(i)) continue;
    return absl::DataLossError(absl::StrCat(
        directory, ": sample ", i, " has ", logits->RowsOf(i), " rows, but predicts ",
        PredictedIn(sample), " tokens; write the logits again (tercio evaluate --write-logits)"));
  }
  // A job that resumes with the logits of another teacher would not be the same job.
  data->digest = Sha256Hex(absl::StrCat(data->digest, "\n", checkpoint::LogitsHeaderJson(header)));
  return absl::OkStatus();
}

absl::StatusOr<LogitsReport> WriteLogits(const OpenedModel& teacher, const v1::JobSpec& job,
                                         data::PreparedData data, const LogitsOptions& options) {
  TERCIO_RETURN_IF_ERROR(checkpoint::CheckIsNew(options.directory));
  checkpoint::LogitsHeader header;
  TERCIO_ASSIGN_OR_RETURN(header.subject, LogitsSubjectOf(job, data));
  TERCIO_RETURN_IF_ERROR(CheckFits(teacher, job, data));
  header.k = options.k;
  header.teacher.name = teacher.directory;
  TERCIO_ASSIGN_OR_RETURN(header.teacher.digest, DigestOfTeacher(teacher));
  const int64_t context = header.subject.context;
  const int64_t row_bytes = checkpoint::BytesOfRow(header.subject.vocabulary, header.k);
  TERCIO_ASSIGN_OR_RETURN(const auto pass,
                          TeacherPass::Load(teacher, options.threads, context, options.k));
  const auto source = data::MakeSampleSource(std::move(data), job);
  TERCIO_ASSIGN_OR_RETURN(const auto writer,
                          checkpoint::LogitsWriter::Create(options.directory, std::move(header)));
  // Rows that are missing; a disk that is too small is noticed before hours of work.
  const int64_t rows = RowsFrom(*source, writer->samples(), context);
  TERCIO_ASSIGN_OR_RETURN(const int64_t free_bytes, FreeBytesFor(options.directory));
  TERCIO_RETURN_IF_ERROR(checkpoint::CheckRoom(options.directory, rows * row_bytes, free_bytes));
  TERCIO_RETURN_IF_ERROR(AddAll(*pass, *source, context, writer->rows() + rows, options, *writer));
  TERCIO_RETURN_IF_ERROR(writer->Commit());
  LogitsReport report = {.samples = writer->samples(),
                         .rows = writer->rows(),
                         .resumed_samples = writer->resumed_samples(),
                         .removed_others = writer->removed_others()};
  TERCIO_ASSIGN_OR_RETURN(report.bytes, BytesOfFiles(options.directory));
  return report;
}

}  // namespace tercio::inference
