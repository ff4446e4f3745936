#include "worker/trainer/data_preparation.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/weight_source.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "data/preparation_protocol.h"
#include "data/prepared_data.h"
#include "plan/distillation.h"
#include "plan/old_words.h"
#include "worker/agent/runs/allowed_paths.h"
#include "worker/inference/stored_logits.h"
#include "worker/inference/teacher_check.h"
#include "worker/trainer/out_of_memory_score.h"

namespace tercio::trainer {
namespace {

constexpr int kFault = 1;

// No memory can be allocated, so nothing is logged: the agent reports the cause.
void EndForMemory() { _exit(data::kExitOutOfMemory); }

// Returns fewer bytes if the input ends.
std::string ReadExactly(size_t bytes) {
  std::string text(bytes, '\0');
  size_t done = 0;
  while (done < bytes) {
    const ssize_t count = read(STDIN_FILENO, text.data() + done, bytes - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

std::optional<v1::PrepareRequest> ReadRequest() {
  const std::string head = ReadExactly(data::kLengthBytes);
  if (head.size() < data::kLengthBytes) return std::nullopt;
  const uint64_t length = data::LengthIn(head);
  // Whatever stands on the input must not decide how much is allocated.
  if (length > data::kLongestMessage) return std::nullopt;
  const std::string body = ReadExactly(static_cast<size_t>(length));
  v1::PrepareRequest request;
  if (body.size() < length || !request.ParseFromString(body)) return std::nullopt;
  // An agent that was not restarted yet passes on what an older coordinator told it.
  if (!plan::UpgradeWords(&request).ok()) return std::nullopt;
  return request;
}

// The other end is a socket, which may take the answer in parts.
bool Write(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

absl::StatusOr<data::PreparedData> Prepare(const v1::PrepareRequest& request) {
  const v1::JobSpec& spec = request.spec();
  const auto allowed = agent::AllowedPaths::Again(
      request.any_path(), {request.data_roots().begin(), request.data_roots().end()});
  // The check is made here, with a trainer's rights, since the agent looks at no file of a job.
  TERCIO_RETURN_IF_ERROR(allowed.Check(spec));
  auto prepared = data::PrepareData(spec.data(), spec.model(), request.cache_dir());
  if (prepared.ok() && plan::HasTeacher(spec.training())) {
    TERCIO_RETURN_IF_ERROR(inference::CheckTeacher(spec.training().distillation(),
                                                   prepared->tokenizer_json, prepared->vocab_size));
  }
  if (prepared.ok()) TERCIO_RETURN_IF_ERROR(inference::CheckStoredLogits(spec, &*prepared));
  // A job that resumes has its weights in a checkpoint.
  if (!prepared.ok() || spec.model().from().empty() || !request.from_start()) return prepared;
  TERCIO_ASSIGN_OR_RETURN(std::vector<std::string> notes,
                          checkpoint::CheckInitialWeights(spec.model(), prepared->vocab_size));
  for (std::string& note : notes) prepared->notices.push_back(std::move(note));
  return prepared;
}

}  // namespace

Preparation PrepareFor(const v1::PrepareRequest& request) {
  Preparation done;
  absl::StatusOr<data::PreparedData> prepared = Prepare(request);
  if (!prepared.ok()) {
    // Names of files and parts of them may be any bytes; messages must be UTF-8.
    done.answer.set_error(ForDisplay(std::string(prepared.status().message()), "\t\n"));
    return done;
  }
  done.answer.set_vocab_size(prepared->vocab_size);
  done.answer.set_train_tokens(prepared->train_tokens);
  done.answer.set_validation_tokens(prepared->validation_tokens);
  done.answer.set_train_samples(prepared->train_sample_count);
  done.answer.set_validation_samples(prepared->validation_sample_count);
  done.answer.set_test_samples(prepared->test_sample_count);
  done.answer.set_digest(prepared->digest);
  for (const std::string& notice : prepared->notices) {
    done.answer.add_notices(ForDisplay(notice, "\t\n"));
  }
  for (std::string& entry : prepared->cache_entries) {
    done.answer.add_cache_entries(std::move(entry));
  }
  // They hold the entries of the cache until the agent does so itself.
  done.uses = std::move(prepared->uses);
  return done;
}

int ServePreparation() {
  // An allocation that fails would otherwise throw, in the middle of some library.
  std::set_new_handler(EndForMemory);
  SetOutOfMemoryScore(kPreparationScore);
  // Output of libraries must not mix with the answer.
  const int output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (output < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return kFault;
  const std::optional<v1::PrepareRequest> request = ReadRequest();
  if (!request.has_value()) {
    LogError("--prepare is for agents: there was no request on the standard input");
    return kFault;
  }
  const Preparation done = PrepareFor(*request);
  if (!Write(output, data::WithLength(done.answer.SerializeAsString()))) return kFault;
  ReadExactly(1);  // until the agent holds the entries of the cache itself
  return 0;
}

}  // namespace tercio::trainer
