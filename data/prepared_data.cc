#include "data/prepared_data.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/file.h"
#include "common/machine.h"
#include "common/sha256.h"
#include "common/status_macros.h"
#include "data/bert_rules.h"
#include "data/chat_dataset.h"
#include "data/data_cache.h"
#include "data/data_files.h"
#include "data/indexed_dataset.h"
#include "data/jsonl.h"
#include "data/objective.h"
#include "data/preference_dataset.h"
#include "data/span_rules.h"
#include "data/text_source.h"
#include "data/tokenize.h"
#include "model/architecture.h"

namespace tercio::data {
namespace {

// One data set of the job, from its paths to its tokens.
struct Source {
  std::string name;  // for messages
  double weight = 1;
  DataFiles files;
  TokenDataset tokens;
  DocumentBorders borders;
  std::optional<tokenizer::Tokenizer> tokenizer;
  std::shared_ptr<const LabelledExamples> examples;  // instead of tokens
  std::shared_ptr<const ChatSamples> chats;          // likewise
  std::shared_ptr<const PreferenceSamples> answers;  // likewise
  int64_t answers_together = 1;
  std::string digest;

  // Tokens, examples, conversations, or lines of answers.
  int64_t size() const {
    if (answers) return static_cast<int64_t>(answers->desirable.size()) / answers_together;
    if (chats) return static_cast<int64_t>(chats->samples.size());
    return examples ? static_cast<int64_t>(examples->examples.size()) : tokens.tokens();
  }
};

enum class Side { kTrain, kValidation, kTest };

// For messages.
const char* PartOf(Side side) {
  return side == Side::kTrain        ? "the training part"
         : side == Side::kValidation ? "the validation part"
                                     : "the test part";
}

// The key that decides how large the part is.
const char* KeyOfPart(Side side) { return side == Side::kTest ? "data.test" : "data.validation"; }

// The part of a source that a side gets: [begin, end) of what its size counts.
struct Share {
  const Source* source;
  Side side;
  int64_t begin;
  int64_t end;
};

// A value for each side.
template <typename Value>
struct PerSide {
  Value train, validation, test;

  Value& operator[](Side side) {
    return side == Side::kTrain ? train : side == Side::kValidation ? validation : test;
  }
};

absl::Status Fault(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

using Blended = google::protobuf::RepeatedPtrField<v1::WeightedData>;

// The data sets of one side: a single path, or a blend.
// A message names all paths of a data set, since any of them may be at fault.
absl::StatusOr<std::vector<Source>> FindSources(const std::string& path, const Blended& blend) {
  std::vector<Source> sources;
  if (!path.empty()) {
    Source& source = sources.emplace_back();
    source.name = path;
    TERCIO_ASSIGN_OR_RETURN(source.files, FindDataFiles({path}));
  }
  for (const v1::WeightedData& data : blend) {
    Source& source = sources.emplace_back();
    source.name = absl::StrJoin(data.paths(), ", ");
    source.weight = data.weight();
    TERCIO_ASSIGN_OR_RETURN(source.files, FindDataFiles(std::vector<std::string>(
                                              data.paths().begin(), data.paths().end())));
  }
  return sources;
}

struct Sides {
  std::vector<Source> train;
  std::vector<Source> validation;  // empty: none, or a fraction
  std::vector<Source> test;        // at most one

  std::vector<Source*> All() {
    std::vector<Source*> all;
    for (std::vector<Source>* side : {&train, &validation, &test}) {
      for (Source& source : *side) all.push_back(&source);
    }
    return all;
  }
};

absl::StatusOr<Sides> FindSides(const v1::DataSpec& spec) {
  Sides sides;
  TERCIO_ASSIGN_OR_RETURN(sides.train, FindSources(spec.train(), spec.train_blend()));
  TERCIO_ASSIGN_OR_RETURN(sides.validation,
                          FindSources(spec.validation_path(), spec.validation_blend()));
  if (spec.test_path().empty()) return sides;
  Blended test;
  v1::WeightedData& parts = *test.Add();
  parts.set_weight(1);
  parts.add_paths(spec.test_path());
  for (const std::string& path : spec.test_more_paths()) parts.add_paths(path);
  TERCIO_ASSIGN_OR_RETURN(sides.test, FindSources("", test));
  return sides;
}

class Preparation {
 public:
  Preparation(const v1::DataSpec& spec, const v1::ModelSpec& model, const std::string& cache_dir,
              ContentCheck check)
      : spec_(spec),
        model_(model),
        cache_dir_(cache_dir),
        check_(check),
        objective_(ObjectiveOf(spec, model)) {
    // Protobuf cannot tell an empty key from a missing one.
    text_.text_key = spec.text_key().empty() ? "text" : spec.text_key();
    text_.skip_bad_lines = spec.skip_bad_lines();
    // Preparation runs before the training starts, so it may use the whole machine.
    text_.threads = MachineCores();
  }

  absl::StatusOr<PreparedData> Prepare();

 private:
  absl::Status FindTokenizer();
  absl::Status OpenTokens(Source* source);
  absl::Status CachedTokens(Source* source);
  void Take(TokenFiles files, Source* source) const;
  absl::StatusOr<std::string> CacheEntry(const Source& source) const;
  absl::Status CheckVocabulary();
  // Sets the size of the vocabulary. Returns the ids that the data may have.
  absl::StatusOr<int32_t> FindVocabulary(int32_t highest);
  absl::Status ReadExamples(const LabelRules& rules, Source* source);
  // The digest of texts that are read into memory.
  absl::Status DigestTexts(Source* source) const;
  // Shares of all sources, in their order.
  std::vector<Share> Shares() const;
  absl::Status MakeCausal();
  absl::Status MakeMasked();
  absl::Status MakeLabelled();
  absl::Status MakeSpans();
  absl::Status MakeChats();
  absl::Status MakeAnswers();
  // The rules of a chat's template; a notice of tokens that the tokenizer lacks. INVALID_ARGUMENT:
  // the model or a file cannot learn from conversations.
  absl::StatusOr<ChatRules> RulesOfChat();
  // Adds tokens of a share to those of its side.
  void CountTokens(Side side, int64_t tokens);
  absl::StatusOr<Blend> BlendOf(Side side) const;
  // Adds data sets of samples, one for each share, to the prepared data.
  absl::Status TakeSamples(const std::vector<Share>& shares,
                           std::vector<std::shared_ptr<const SampleDataset>> datasets);
  absl::StatusOr<std::string> DigestOfSides() const;

  const v1::DataSpec& spec_;
  const v1::ModelSpec& model_;
  const std::string& cache_dir_;
  const ContentCheck check_;
  const Objective objective_;
  TextOptions text_;
  Sides sides_;
  std::optional<tokenizer::Tokenizer> tokenizer_;
  std::string rules_;               // rules of samples, but causal ones
  SpanVocabulary span_vocabulary_;  // t5
  PreparedData prepared_;
};

// The tokenizer of the texts, or the one that the job names for token files.
absl::Status Preparation::FindTokenizer() {
  std::vector<std::string> texts;
  for (const Source* source : sides_.All()) {
    if (source->files.kind != DataKind::kText) continue;
    texts.insert(texts.end(), source->files.paths.begin(), source->files.paths.end());
  }
  // "chars" needs texts to take its characters from; without any it names nothing.
  if (texts.empty() && (spec_.tokenizer().empty() || spec_.tokenizer() == "chars")) {
    return absl::OkStatus();  // the one beside the files, if there is one
  }
  absl::StatusOr<tokenizer::Tokenizer> tokenizer = ChooseTokenizer(spec_.tokenizer(), texts, text_);
  // The message begins with the key of the job, which is what a person has to change.
  if (!tokenizer.ok()) {
    return absl::Status(
        tokenizer.status().code(),
        absl::StrCat("data.tokenizer: ", std::string(tokenizer.status().message())));
  }
  tokenizer_ = *std::move(tokenizer);
  return absl::OkStatus();
}

// Entries are named by the inputs that determine their bytes. A text alone: tokenizer and content.
absl::StatusOr<std::string> Preparation::CacheEntry(const Source& source) const {
  Sha256 sha;
  sha.Update(tokenizer_->ToJson());
  // Sentences change the index but not the ids, so the same text needs a second entry.
  if (model_.sentence_order()) sha.Update("\nsentences\n");
  const bool one_text = source.files.paths.size() == 1 && !IsJsonl(source.files.paths[0]);
  for (const std::string& path : source.files.paths) {
    TERCIO_ASSIGN_OR_RETURN(const auto file, OpenText(path));
    if (!one_text) {
      // The sizes separate files and keys, so that no two lists of inputs give the same bytes.
      sha.Update(absl::StrCat("\n", IsJsonl(path) ? "jsonl" : "text", " ", file->content().size(),
                              " ", text_.skip_bad_lines, " ", text_.text_key.size(), " ",
                              text_.text_key, "\n"));
    }
    sha.Update(file->content());
  }
  return absl::StrCat(cache_dir_, "/", sha.HexDigest());
}

// Takes the tokens of texts from the cache, or makes them now and puts them there.
absl::Status Preparation::CachedTokens(Source* source) {
  TERCIO_ASSIGN_OR_RETURN(const std::string prefix, CacheEntry(*source));
  TERCIO_RETURN_IF_ERROR(MakeDirectories(cache_dir_));
  // The lock waits: of several processes on a node one makes the entry and the others read it.
  TERCIO_ASSIGN_OR_RETURN(const auto lock, FileLock::Acquire(prefix + ".lock", WhenHeld::kWait));
  // This precedes the reading, so that no trimming removes the entry in between.
  if (auto use = UseCacheEntry(prefix)) prepared_.uses.push_back(std::move(use));
  // The agent holds the entry for processes whose rights do not suffice to mark it.
  prepared_.cache_entries.push_back(prefix.substr(cache_dir_.size() + 1));
  const DataFiles entry = {DataKind::kIndexed, {prefix}};
  // Whoever finds the entry made needs the same notice, so it is kept beside it.
  const std::string notice = prefix + ".notice";
  absl::StatusOr<TokenFiles> cached = OpenTokenFiles(entry, check_);
  // An entry that cannot be read is made again: a cache may be damaged, but never stops a job.
  if (!cached.ok() || cached->tokenizer != tokenizer_) {
    TokenizeOptions options;
    options.text = text_;
    options.split_sentences = model_.sentence_order();
    TERCIO_ASSIGN_OR_RETURN(const TokenizeReport report,
                            TokenizeTexts(source->files.paths, *tokenizer_, prefix, options));
    // The notice is written after the tokens; if the process dies in between, only the notice is
    // lost.
    if (report.skipped_lines > 0) {
      TERCIO_RETURN_IF_ERROR(
          WriteFileDurably(notice, SkippedLinesNotice(report.skipped_lines, report.first_skipped)));
    }
    cached = OpenTokenFiles(entry, check_);
    if (!cached.ok()) return cached.status();
  }
  if (PathExists(notice)) {
    TERCIO_ASSIGN_OR_RETURN(std::string text, ReadFile(notice));
    prepared_.notices.push_back(std::move(text));
  }
  Take(*std::move(cached), source);
  return absl::OkStatus();
}

void Preparation::Take(TokenFiles files, Source* source) const {
  source->tokens = std::move(files.tokens);
  source->borders = std::move(files.borders);
  source->tokenizer = std::move(files.tokenizer);
  // Without reading the content there is no digest, and whoever checked it has one.
  if (check_ == ContentCheck::kDone) return;
  // Borders decide the samples of a masked model, while a causal one sees only the ids.
  source->digest = objective_ == Objective::kMasked ? Sha256Hex(files.digest + files.index_digest)
                                                    : std::move(files.digest);
}

absl::Status Preparation::OpenTokens(Source* source) {
  if (source->files.kind == DataKind::kText) return CachedTokens(source);
  TERCIO_ASSIGN_OR_RETURN(TokenFiles files, OpenTokenFiles(source->files, check_));
  Take(std::move(files), source);
  if (!source->tokenizer.has_value()) return absl::OkStatus();
  // The first tokenizer beside token files becomes that of the job, and the others are compared
  // with it.
  if (!tokenizer_.has_value()) tokenizer_ = source->tokenizer;
  if (*source->tokenizer == *tokenizer_) return absl::OkStatus();
  return Fault(
      source->name,
      absl::StrCat("was made with a different tokenizer (", source->tokenizer->kind(), ", ",
                   source->tokenizer->vocab_size(), " ids) than the rest of the job (",
                   tokenizer_->kind(), ", ", tokenizer_->vocab_size(),
                   " ids); tokenise all of it with the same tokenizer, or leave ",
                   "data.tokenizer out"));
}

absl::StatusOr<int32_t> Preparation::FindVocabulary(int32_t highest) {
  const int32_t given = model_.vocab_size();
  if (objective_ == Objective::kSpans) {
    TERCIO_ASSIGN_OR_RETURN(span_vocabulary_, SpanVocabularyOf(spec_, tokenizer_, given, highest));
    prepared_.vocab_size = span_vocabulary_.vocab_size;
    return span_vocabulary_.data_ids;
  }
  prepared_.vocab_size = tokenizer_  ? tokenizer_->vocab_size()
                         : given > 0 ? given
                                     // Special tokens may be above every id of the data.
                                     : std::max(highest, HighestSpecialToken(spec_)) + 1;
  return prepared_.vocab_size;
}

absl::Status Preparation::CheckVocabulary() {
  int32_t highest = -1;
  const Source* with_highest = nullptr;
  // A vocabulary has to come from somewhere: without tokenizer and job the data are read for it.
  const bool known = tokenizer_.has_value() || model_.vocab_size() > 0;
  const bool looks = check_ == ContentCheck::kHere || !known;
  for (const Source* source : sides_.All()) {
    // Ids that a tokenizer has just made need no look.
    if (source->files.kind == DataKind::kText || !looks) continue;
    TERCIO_ASSIGN_OR_RETURN(const int32_t here, source->tokens.HighestToken(source->name));
    if (here > highest) with_highest = source;
    highest = std::max(highest, here);
  }
  TERCIO_ASSIGN_OR_RETURN(const int32_t data_ids, FindVocabulary(highest));
  const int32_t given = model_.vocab_size();
  const char* const special =
      tokenizer_ && prepared_.vocab_size > tokenizer_->vocab_size() ? " with special tokens" : "";
  // The embedding table would be too small for the tokenizer's ids. Only a tokenizer can cause
  // this, since without one the given size is the size.
  if (given > 0 && given < prepared_.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.vocab_size is ", given, ", but the tokenizer '", tokenizer_->kind(),
                     "' has ", prepared_.vocab_size, " ids", special,
                     "; leave model.vocab_size out or make it at least that"));
  }
  // With model.from the size belongs to the weights, which may have rows that no id uses.
  if (given > prepared_.vocab_size && model_.from().empty()) {
    prepared_.notices.push_back(absl::StrCat("model.vocab_size ", given,
                                             " is not used: the tokenizer has ",
                                             prepared_.vocab_size, " ids", special));
  }
  if (highest < data_ids) return absl::OkStatus();
  return Fault(
      with_highest->name,
      absl::StrCat("token id ", highest, " is outside the vocabulary of ", data_ids,
                   tokenizer_                        ? " of the tokenizer"
                   : data_ids < prepared_.vocab_size ? " without special tokens"
                                                     : "",
                   "; the data was made with a different tokenizer, or model.vocab_size is ",
                   "too small"));
}

std::vector<Share> Preparation::Shares() const {
  std::vector<Share> shares;
  for (const Source& source : sides_.train) {
    const int64_t all = source.size();
    // The fraction is taken of each source, so that a blend is validated on all of its parts.
    // Rounding down is in the contract, for every node must cut at the same place.
    const auto kept = static_cast<int64_t>(
        std::floor(static_cast<double>(all) * (1.0 - spec_.validation_fraction())));
    shares.push_back({&source, Side::kTrain, 0, kept});
    if (spec_.validation_fraction() > 0 && sides_.validation.empty()) {
      shares.push_back({&source, Side::kValidation, kept, all});
    }
  }
  for (const Source& source : sides_.validation) {
    shares.push_back({&source, Side::kValidation, 0, source.size()});
  }
  for (const Source& source : sides_.test) {
    shares.push_back({&source, Side::kTest, 0, source.size()});
  }
  return shares;
}

absl::StatusOr<Blend> BlendOfSources(const std::vector<Source>& sources) {
  std::vector<double> weights;
  for (const Source& source : sources) weights.push_back(source.weight);
  absl::StatusOr<Blend> blend = Blend::Create(weights);
  if (!blend.ok()) return Fault("data", std::string(blend.status().message()));
  return blend;
}

absl::StatusOr<Blend> Preparation::BlendOf(Side side) const {
  if (side == Side::kTest) return BlendOfSources(sides_.test);
  // A fraction of the training data has the weights of the training data.
  const bool own = side == Side::kValidation && !sides_.validation.empty();
  return BlendOfSources(own ? sides_.validation : sides_.train);
}

absl::Status Preparation::MakeCausal() {
  PerSide<std::vector<TokenDataset>> datasets;
  for (const Share& share : Shares()) {
    const int64_t tokens = share.end - share.begin;
    // The last token of a sample is only a target, so a sample needs one more than the context.
    if (tokens <= model_.context()) {
      return Fault(
          share.source->name,
          absl::StrCat(PartOf(share.side), " has ", tokens,
                       " tokens, but one sample needs model.context + 1 = ", model_.context() + 1,
                       "; use more text, a shorter context or another ", KeyOfPart(share.side)));
    }
    datasets[share.side].push_back(share.source->tokens.Slice(share.begin, share.end));
  }
  for (const auto& [side, out, samples] :
       {std::tuple(Side::kTrain, &prepared_.train, &prepared_.train_sample_count),
        std::tuple(Side::kValidation, &prepared_.validation, &prepared_.validation_sample_count),
        std::tuple(Side::kTest, &prepared_.test, &prepared_.test_sample_count)}) {
    if (datasets[side].empty()) continue;
    TERCIO_ASSIGN_OR_RETURN(Blend blend, BlendOf(side));
    *out = BlendedDataset(std::move(datasets[side]), std::move(blend));
    *samples = out->Samples(model_.context());
    for (const TokenDataset& dataset : out->datasets()) {
      prepared_.numbered.push_back(dataset.Samples(model_.context()));
    }
  }
  prepared_.train_tokens = prepared_.train.tokens();
  prepared_.validation_tokens = prepared_.validation.tokens();
  return absl::OkStatus();
}

void Preparation::CountTokens(Side side, int64_t tokens) {
  // Nothing asks for the tokens of a test.
  if (side == Side::kTest) return;
  (side == Side::kTrain ? prepared_.train_tokens : prepared_.validation_tokens) += tokens;
}

absl::Status Preparation::MakeMasked() {
  TERCIO_ASSIGN_OR_RETURN(const MaskingRules rules,
                          MaskingRulesOf(spec_, model_, tokenizer_, prepared_.vocab_size));
  // The rules are part of the digest, since they change samples without changing the data.
  rules_ = Describe(rules);
  const std::vector<Share> shares = Shares();
  std::vector<std::shared_ptr<const SampleDataset>> datasets;
  for (const Share& share : shares) {
    datasets.push_back(std::make_shared<const MaskedDataset>(
        // Tokens and borders are cut at the same place, so that their positions agree.
        share.source->tokens.Slice(share.begin, share.end),
        share.source->borders.Slice(share.begin, share.end), rules));
    CountTokens(share.side, share.end - share.begin);
    // Documents shorter than a sample are left out, so tokens alone do not mean that there is one.
    if (datasets.back()->samples() > 0) continue;
    return Fault(share.source->name,
                 absl::StrCat(PartOf(share.side), " has no document of ", rules.least_tokens(),
                              " tokens, which one sample needs; use more text or another ",
                              KeyOfPart(share.side)));
  }
  return TakeSamples(shares, std::move(datasets));
}

absl::Status Preparation::ReadExamples(const LabelRules& rules, Source* source) {
  TERCIO_ASSIGN_OR_RETURN(LabelledExamples read,
                          ReadLabelledExamples(source->files.paths, *tokenizer_, rules));
  if (read.skipped_lines > 0) {
    prepared_.notices.push_back(SkippedLinesNotice(read.skipped_lines, read.first_skipped));
  }
  source->examples = std::make_shared<const LabelledExamples>(std::move(read));
  return DigestTexts(source);
}

absl::Status Preparation::DigestTexts(Source* source) const {
  // Whoever checked the content has the digest; the files are not read a second time for it.
  if (check_ == ContentCheck::kDone) return absl::OkStatus();
  Sha256 sha;
  sha.Update(tokenizer_->ToJson());
  for (const std::string& path : source->files.paths) {
    TERCIO_ASSIGN_OR_RETURN(const auto file, OpenText(path));
    // The size separates files, so that a line cannot move from one to the next unnoticed.
    sha.Update(absl::StrCat("\n", file->content().size(), "\n"));
    sha.Update(file->content());
  }
  source->digest = sha.HexDigest();
  return absl::OkStatus();
}

absl::Status Preparation::MakeLabelled() {
  for (const Source* source : sides_.All()) {
    if (source->files.kind == DataKind::kText) continue;
    return Fault(source->name,
                 "holds tokens, but a classifier (model.labels) learns from .jsonl, .csv or .tsv "
                 "files with a text and a label in each line");
  }
  // Texts are present, since all sources are texts, so FindTokenizer has chosen a tokenizer.
  TERCIO_ASSIGN_OR_RETURN(LabelRules rules, LabelRulesOf(spec_, model_, *tokenizer_));
  rules.threads = text_.threads;
  rules_ = Describe(rules);
  for (Source* source : sides_.All()) TERCIO_RETURN_IF_ERROR(ReadExamples(rules, source));
  const std::vector<Share> shares = Shares();
  std::vector<std::shared_ptr<const SampleDataset>> datasets;
  // A class without examples is never predicted, which a person should know before the training.
  std::vector<int64_t> examples_of_label(static_cast<size_t>(rules.labels), 0);
  for (const Share& share : shares) {
    if (share.begin == share.end) {
      return Fault(share.source->name,
                   absl::StrCat(PartOf(share.side), " has no examples; use more data, or another ",
                                KeyOfPart(share.side)));
    }
    const auto dataset = std::make_shared<const LabelledDataset>(share.source->examples,
                                                                 share.begin, share.end, rules);
    CountTokens(share.side, dataset->tokens());
    // Only training counts: a class that is missing in validation does no harm.
    if (share.side == Side::kTrain) dataset->CountLabels(&examples_of_label);
    datasets.push_back(dataset);
  }
  for (size_t i = 0; i < examples_of_label.size(); ++i) {
    if (examples_of_label[i] > 0 || sides_.train.empty()) continue;
    prepared_.notices.push_back(absl::StrCat(
        "no training example has label ", i,
        rules.label_names.empty() ? "" : absl::StrCat(" (", rules.label_names[i], ")")));
  }
  return TakeSamples(shares, std::move(datasets));
}

absl::Status Preparation::MakeSpans() {
  TERCIO_ASSIGN_OR_RETURN(const SpanRules rules, SpanRulesOf(spec_, model_, span_vocabulary_));
  rules_ = Describe(rules);
  const std::vector<Share> shares = Shares();
  std::vector<std::shared_ptr<const SampleDataset>> datasets;
  for (const Share& share : shares) {
    const int64_t tokens = share.end - share.begin;
    if (tokens < rules.lengths.raw) {
      return Fault(
          share.source->name,
          absl::StrCat(PartOf(share.side), " has ", tokens, " tokens, but one sample ", "needs ",
                       rules.lengths.raw, " for a model.context of ", model_.context(),
                       "; use more text, a shorter context or another ", KeyOfPart(share.side)));
    }
    datasets.push_back(std::make_shared<const SpanDataset>(
        share.source->tokens.Slice(share.begin, share.end), rules));
    CountTokens(share.side, tokens);
  }
  return TakeSamples(shares, std::move(datasets));
}

absl::StatusOr<ChatRules> Preparation::RulesOfChat() {
  if (!model::ArchitectureOf(model_).causal) {
    return absl::InvalidArgumentError(
        objective_ == Objective::kAnswers
            ? "preferences need a model that predicts each token from those before it"
            : "training.objective: sft needs a model that predicts each token from those before "
              "it");
  }
  for (const Source* source : sides_.All()) {
    if (source->files.kind == DataKind::kText) continue;
    return Fault(source->name,
                 objective_ == Objective::kAnswers
                     ? "holds tokens, but preferences are learnt from .jsonl files with a prompt "
                       "and its answers in each line"
                     : "holds tokens, but training.objective: sft learns from .jsonl files with a "
                       "conversation in each line");
  }
  // Texts are present, since all sources are texts, so FindTokenizer has chosen a tokenizer.
  TERCIO_ASSIGN_OR_RETURN(ChatRules rules, ChatRulesOf(spec_, model_.context(), *tokenizer_));
  rules.threads = text_.threads;
  const std::vector<std::string> missing = chat::MissingTokens(*rules.chat_template, *tokenizer_);
  if (!missing.empty()) {
    prepared_.notices.push_back(
        absl::StrCat("the tokenizer writes ", absl::StrJoin(missing, ", "), " of the template ",
                     std::string(rules.chat_template->name), " as several tokens"));
  }
  return rules;
}

absl::Status Preparation::MakeAnswers() {
  PreferenceRules rules;
  rules.form = spec_.chat().answers();
  TERCIO_ASSIGN_OR_RETURN(rules.chat, RulesOfChat());
  rules_ = Describe(rules);
  const int64_t together = SamplesTogether(rules.form);
  for (Source* source : sides_.All()) {
    TERCIO_ASSIGN_OR_RETURN(PreferenceSamples read,
                            ReadPreferenceSamples(source->files.paths, *tokenizer_, rules));
    for (std::string& notice : NoticesAbout(read, source->name, rules)) {
      prepared_.notices.push_back(std::move(notice));
    }
    source->answers = std::make_shared<const PreferenceSamples>(std::move(read));
    source->answers_together = together;
    TERCIO_RETURN_IF_ERROR(DigestTexts(source));
  }
  const std::vector<Share> shares = Shares();
  std::vector<std::shared_ptr<const SampleDataset>> datasets;
  int64_t numbered = 0;
  for (const Share& share : shares) {
    if (share.begin == share.end) {
      return Fault(share.source->name,
                   absl::StrCat(PartOf(share.side), " has no answers; use more data, or another ",
                                KeyOfPart(share.side)));
    }
    auto dataset = std::make_shared<const PreferenceDataset>(
        share.source->answers, share.begin * together, share.end * together, numbered, rules);
    numbered += dataset->samples();
    prepared_.numbered.push_back(dataset->samples());
    CountTokens(share.side, dataset->tokens());
    datasets.push_back(dataset);
    prepared_.preferences.push_back(std::move(dataset));
  }
  return TakeSamples(shares, std::move(datasets));
}

absl::Status Preparation::MakeChats() {
  TERCIO_ASSIGN_OR_RETURN(const ChatRules rules, RulesOfChat());
  rules_ = Describe(rules);
  for (Source* source : sides_.All()) {
    TERCIO_ASSIGN_OR_RETURN(ChatSamples read,
                            ReadChatSamples(source->files.paths, *tokenizer_, rules));
    for (std::string& notice : NoticesAbout(read, source->name, model_.context())) {
      prepared_.notices.push_back(std::move(notice));
    }
    source->chats = std::make_shared<const ChatSamples>(std::move(read));
    TERCIO_RETURN_IF_ERROR(DigestTexts(source));
  }
  const std::vector<Share> shares = Shares();
  std::vector<std::shared_ptr<const SampleDataset>> datasets;
  int64_t numbered = 0;
  for (const Share& share : shares) {
    if (share.begin == share.end) {
      return Fault(share.source->name,
                   absl::StrCat(PartOf(share.side), " has no conversations; use more data, or ",
                                "another ", KeyOfPart(share.side)));
    }
    const auto dataset = std::make_shared<const ChatDataset>(share.source->chats, share.begin,
                                                             share.end, numbered, rules);
    numbered += dataset->samples();
    // Which conversations a sequence holds depends on how the data is divided.
    if (!rules.packing) {
      prepared_.numbered.push_back(dataset->samples());
      prepared_.chats.push_back(dataset);
    }
    CountTokens(share.side, dataset->tokens());
    std::string notice = dataset->PackingNotice(share.source->name, PartOf(share.side));
    if (!notice.empty()) prepared_.notices.push_back(std::move(notice));
    datasets.push_back(dataset);
  }
  return TakeSamples(shares, std::move(datasets));
}

absl::Status Preparation::TakeSamples(const std::vector<Share>& shares,
                                      std::vector<std::shared_ptr<const SampleDataset>> datasets) {
  PerSide<std::vector<std::shared_ptr<const SampleDataset>>> of_sides;
  for (size_t i = 0; i < shares.size(); ++i) {
    // Data sets keep the order of the shares, which is the order of the blend's weights.
    of_sides[shares[i].side].push_back(std::move(datasets[i]));
  }
  for (const auto& [side, out, samples] :
       {std::tuple(Side::kTrain, &prepared_.train_samples, &prepared_.train_sample_count),
        std::tuple(Side::kValidation, &prepared_.validation_samples,
                   &prepared_.validation_sample_count),
        std::tuple(Side::kTest, &prepared_.test_samples, &prepared_.test_sample_count)}) {
    if (of_sides[side].empty()) continue;
    TERCIO_ASSIGN_OR_RETURN(Blend blend, BlendOf(side));
    *out = BlendedSamples(std::move(of_sides[side]), std::move(blend));
    *samples = out->samples();
  }
  return absl::OkStatus();
}

// A single data set has its own digest; a blend has that of all data sets and their shares.
std::string DigestOf(const std::vector<Source>& sources, const Blend& blend) {
  if (sources.size() == 1) return sources[0].digest;
  std::string all;
  for (size_t d = 0; d < sources.size(); ++d) {
    absl::StrAppend(&all, sources[d].digest, " ", blend.units()[d], "\n");
  }
  return Sha256Hex(all);
}

absl::StatusOr<std::string> Preparation::DigestOfSides() const {
  std::string digest;
  if (!sides_.train.empty()) {
    TERCIO_ASSIGN_OR_RETURN(const Blend blend, BlendOf(Side::kTrain));
    digest = DigestOf(sides_.train, blend);
  }
  if (!sides_.validation.empty()) {
    TERCIO_ASSIGN_OR_RETURN(const Blend blend, BlendOf(Side::kValidation));
    digest = Sha256Hex(digest + DigestOf(sides_.validation, blend));
  }
  if (!sides_.test.empty()) {
    TERCIO_ASSIGN_OR_RETURN(const Blend blend, BlendOf(Side::kTest));
    // The word keeps a test apart from validation data of the same content.
    digest = Sha256Hex(absl::StrCat(digest, "test", DigestOf(sides_.test, blend)));
  }
  // A causal job has no rules, and its digest is that of the data alone.
  return rules_.empty() ? digest : Sha256Hex(absl::StrCat(digest, "\n", rules_));
}

absl::StatusOr<PreparedData> Preparation::Prepare() {
  TERCIO_ASSIGN_OR_RETURN(sides_, FindSides(spec_));
  // Validation may be missing, but without training data a job can only evaluate.
  if (sides_.train.empty() && sides_.test.empty()) {
    return absl::InvalidArgumentError("data.train names no files");
  }
  // Texts cannot be opened as tokens before their tokenizer is known.
  TERCIO_RETURN_IF_ERROR(FindTokenizer());
  // A classifier and a chat read their texts directly, and keep no tokens in the cache.
  if (objective_ != Objective::kLabelled && objective_ != Objective::kChat &&
      objective_ != Objective::kAnswers) {
    for (Source* source : sides_.All()) TERCIO_RETURN_IF_ERROR(OpenTokens(source));
    TERCIO_RETURN_IF_ERROR(CheckVocabulary());
  }
  switch (objective_) {
    case Objective::kCausal:
      TERCIO_RETURN_IF_ERROR(MakeCausal());
      break;
    case Objective::kMasked:
      TERCIO_RETURN_IF_ERROR(MakeMasked());
      break;
    case Objective::kSpans:
      TERCIO_RETURN_IF_ERROR(MakeSpans());
      break;
    case Objective::kLabelled:
      TERCIO_RETURN_IF_ERROR(MakeLabelled());
      // The tokenizer decides the vocabulary here, too, but the lines are read first: their faults
      // are more common.
      TERCIO_RETURN_IF_ERROR(CheckVocabulary());
      break;
    case Objective::kChat:
      TERCIO_RETURN_IF_ERROR(MakeChats());
      TERCIO_RETURN_IF_ERROR(CheckVocabulary());
      break;
    case Objective::kAnswers:
      TERCIO_RETURN_IF_ERROR(MakeAnswers());
      TERCIO_RETURN_IF_ERROR(CheckVocabulary());
      break;
  }
  if (check_ == ContentCheck::kHere) {
    TERCIO_ASSIGN_OR_RETURN(prepared_.digest, DigestOfSides());
  }
  if (tokenizer_.has_value()) prepared_.tokenizer_json = tokenizer_->ToJson();
  return std::move(prepared_);
}

}  // namespace

absl::StatusOr<int32_t> ExpectedVocabulary(const v1::DataSpec& spec, const v1::ModelSpec& model) {
  const auto size_with = [&](const tokenizer::Tokenizer& tokenizer) -> absl::StatusOr<int32_t> {
    if (ObjectiveOf(spec, model) != Objective::kSpans) return tokenizer.vocab_size();
    TERCIO_ASSIGN_OR_RETURN(const SpanVocabulary vocabulary,
                            SpanVocabularyOf(spec, tokenizer, model.vocab_size(), /*highest=*/-1));
    return vocabulary.vocab_size;
  };
  // This tokenizer can be opened without looking at the data.
  if (!spec.tokenizer().empty() && spec.tokenizer() != "chars") {
    TERCIO_ASSIGN_OR_RETURN(const tokenizer::Tokenizer tokenizer,
                            ChooseTokenizer(spec.tokenizer(), {}, {}));
    return size_with(tokenizer);
  }
  TERCIO_ASSIGN_OR_RETURN(Sides sides, FindSides(spec));
  std::vector<std::string> texts;
  for (const Source* source : sides.All()) {
    if (source->files.kind == DataKind::kText) {
      texts.insert(texts.end(), source->files.paths.begin(), source->files.paths.end());
    } else if (source->files.kind == DataKind::kIndexed) {
      TERCIO_ASSIGN_OR_RETURN(const IndexedDataset dataset,
                              OpenIndexedDataset(source->files.paths.front()));
      // One tokenizer is enough, since PrepareData refuses data sets whose tokenizers differ.
      if (dataset.tokenizer.has_value()) return size_with(*dataset.tokenizer);
    }
  }
  if (texts.empty()) return absl::NotFoundError("the data has no tokenizer");
  TextOptions options;
  options.text_key = spec.text_key().empty() ? "text" : spec.text_key();
  options.threads = MachineCores();
  TERCIO_ASSIGN_OR_RETURN(const tokenizer::Tokenizer tokenizer,
                          ChooseTokenizer(spec.tokenizer(), texts, options));
  return size_with(tokenizer);
}

absl::StatusOr<PreparedData> PrepareData(const v1::DataSpec& spec, const v1::ModelSpec& model,
                                         const std::string& cache_dir, ContentCheck check) {
  return Preparation(spec, model, cache_dir, check).Prepare();
}

}  // namespace tercio::data
