#include "serve/request_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace tercio::serve {

absl::Status RequestQueue::Submit(RequestId request, std::vector<TextTask> tasks, absl::Time now) {
  // A free slot is filled before the next pass only.
  const size_t all = waiting_.size() + growing_.size() + tasks.size();
  if (all > limits_.slots + limits_.waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting_.size(), " texts wait for the model, and at most ", limits_.waiting,
                     " may (--max-queue); retry later, or with fewer texts in a request"));
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    Entry entry;
    entry.request = request;
    entry.text = i;
    entry.task = std::move(tasks[i]);
    entry.submitted = now;
    waiting_.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

void RequestQueue::Cancel(RequestId request) {
  std::erase_if(waiting_, [request](const Entry& entry) { return entry.request == request; });
  // A pass may be running: these leave the batch before the next one.
  for (auto& [unused, entry] : growing_) {
    if (entry.request == request) entry.cancelled = true;
  }
}

std::vector<TextNews> RequestQueue::Fill(inference::TextBatch& batch) {
  std::erase_if(growing_, [&batch](const auto& item) {
    if (!item.second.cancelled) return false;
    batch.Remove(item.first);
    return true;
  });
  std::vector<TextNews> failed;
  while (!waiting_.empty() &&
         batch.HasRoomFor(waiting_.front().task.prompt, waiting_.front().task.options)) {
    Entry entry = std::move(waiting_.front());
    waiting_.pop_front();
    const absl::StatusOr<inference::TextBatch::Text> text =
        batch.Add(entry.task.prompt, entry.task.options);
    if (!text.ok()) {
      failed.push_back({.request = entry.request, .text = entry.text, .status = text.status()});
      Cancel(entry.request);
      continue;
    }
    figures_.prompt_tokens += static_cast<int64_t>(entry.task.prompt.size());
    entry.stream = std::make_unique<tokenizer::TextStream>(decode_, entry.task.prompt);
    entry.stop = std::make_unique<StopWords>(entry.task.stop);
    growing_.emplace(*text, std::move(entry));
  }
  CountCache(batch);
  return failed;
}

std::vector<TextNews> RequestQueue::Take(inference::TextBatch& batch,
                                         absl::Span<const inference::TextBatch::News> news,
                                         absl::Time now) {
  std::vector<TextNews> all;
  for (const inference::TextBatch::News& one : news) {
    const auto found = growing_.find(one.text);
    // Nothing follows of a cancelled one; Fill removes it.
    if (found == growing_.end() || found->second.cancelled) continue;
    Entry& entry = found->second;
    all.push_back(Next(entry, one, now));
    const TextNews& next = all.back();
    if (next.status.ok() && !next.finish.has_value()) continue;
    const RequestId request = entry.request;
    const bool failed = !next.status.ok();
    batch.Remove(one.text);
    growing_.erase(found);
    if (failed) Cancel(request);
  }
  CountCache(batch);
  return all;
}

TextNews RequestQueue::Next(Entry& entry, const inference::TextBatch::News& news, absl::Time now) {
  TextNews out = {.request = entry.request, .text = entry.text, .status = news.status};
  out.prompt = news.prompt;
  if (!out.status.ok() || !news.id.has_value()) return out;
  if (entry.task.max_tokens == 0) {
    out.finish = Finish::kLength;
    return out;
  }
  CountTime(entry, now);
  if (end_ == news.id->id && !entry.task.ignore_end) {
    out.finish = Finish::kStop;
  } else {
    out.id = news.id;
    ++entry.made;
    ++figures_.new_tokens;
  }
  out.status = Show(entry, &out);
  return out;
}

absl::Status RequestQueue::Show(Entry& entry, TextNews* out) {
  if (out->id.has_value()) {
    TERCIO_ASSIGN_OR_RETURN(const std::string piece, entry.stream->Add(out->id->id));
    out->piece = entry.stop->Add(piece);
    if (entry.stop->found()) {
      out->finish = Finish::kStop;
    } else if (entry.made >= entry.task.max_tokens) {
      out->finish = Finish::kLength;
    }
  }
  if (!out->finish.has_value() || entry.stop->found()) return absl::OkStatus();
  TERCIO_ASSIGN_OR_RETURN(const std::string rest, entry.stream->Finish());
  out->piece += entry.stop->Add(rest);
  // The last character may have completed a stop word.
  out->piece += entry.stop->Finish();
  return absl::OkStatus();
}

void RequestQueue::CountCache(const inference::TextBatch& batch) {
  const inference::TextBatch::CacheUse use = batch.cache_use();
  figures_.cache_pages = use.pages;
  figures_.used_cache_pages = use.used_pages;
  figures_.reused_prompt_tokens = use.reused_tokens;
  figures_.evicted_texts = use.evictions;
}

void RequestQueue::CountTime(Entry& entry, absl::Time now) {
  if (entry.made == 0) {
    figures_.first_token.Observe(absl::ToDoubleSeconds(now - entry.submitted));
  } else {
    figures_.next_token.Observe(absl::ToDoubleSeconds(now - entry.last));
  }
  entry.last = now;
}

}  // namespace tercio::serve
