#include "checkpoint/torch/pickle_machine.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/torch/pickle_calls.h"
#include "checkpoint/torch/pickle_text.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace tercio::checkpoint {
namespace {

constexpr size_t kLongestName = 500;
constexpr uint8_t kNewestProtocol = 5;

// Why a pickle is refused, without the byte.
absl::Status DamagedPickle(const std::string& what) { return absl::DataLossError(what); }
absl::Status RefusedPickle(const std::string& what) { return absl::InvalidArgumentError(what); }

std::optional<int64_t> WholeNumber(std::string_view digits) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(std::string(digits), &number)) return std::nullopt;
  return number;
}

std::optional<double> RealNumber(std::string_view digits) {
  double number = 0;
  if (!absl::SimpleAtod(std::string(digits), &number)) return std::nullopt;
  return number;
}

// Whether the highest bit, which is the sign, is set.
bool IsNegative(std::string_view number) {
  return !number.empty() && (static_cast<uint8_t>(number.back()) & 0x80u) != 0;
}

class PickleMachine {
 public:
  PickleMachine(std::string_view bytes, PickleArena* arena)
      : bytes_(bytes.substr(0, kLargestPickle)),
        cut_(bytes.size() > kLargestPickle),
        arena_(*arena),
        calls_(bytes_.size(), arena) {
    // Values without content are shared, so that one byte makes no node.
    constants_[0] = arena_.Add(PickleValue::Kind::kNone);
    for (const bool value : {false, true}) {
      constants_[value ? 2 : 1] = arena_.Add(PickleValue::Kind::kBool);
      constants_[value ? 2 : 1]->value = value;
    }
  }

  absl::StatusOr<PickleResult> Run() {
    for (;;) {
      opcode_at_ = at_;
      const absl::StatusOr<bool> done = Step();
      if (!done.ok()) {
        return absl::Status(done.status().code(),
                            absl::StrCat("byte ", opcode_at_,
                                         " of the pickle: ", std::string(done.status().message())));
      }
      if (*done) return PickleResult{PickleValue(stack_.back()), at_};
    }
  }

 private:
  using Kind = PickleValue::Kind;

  // An instruction: its code, the function for it and what tells it from others of its kind.
  struct Opcode {
    uint8_t code;
    absl::Status (PickleMachine::*run)(int argument);
    int argument = 0;
  };
  static const Opcode kOpcodes[];

  // One instruction; true: it was the last.
  absl::StatusOr<bool> Step();

  // Reading.
  absl::StatusOr<std::string_view> Take(uint64_t count);
  absl::StatusOr<std::string_view> TakeLine();
  absl::StatusOr<uint64_t> TakeNumber(int bytes);
  absl::StatusOr<std::string_view> TakeCounted(int length_bytes);

  // The stack.
  absl::StatusOr<PickleNode*> Pop();
  absl::StatusOr<PickleNode*> Top(Kind kind);
  absl::StatusOr<std::vector<PickleValue>> PopToMark();
  PickleNode* Push(Kind kind);
  template <typename Value>
  absl::Status PushValue(Kind kind, Value value);
  absl::Status PushText(std::string text);
  absl::Status PushLong(std::string_view bytes);

  // Instructions, named as in Python's pickletools where that is short enough.
  absl::Status Protocol(int);
  absl::Status Frame(int);
  absl::Status Constant(int which);
  absl::Status Unsigned(int bytes);
  absl::Status Signed(int bytes);
  absl::Status Long(int length_bytes);
  absl::Status IntegerLine(int is_long);
  absl::Status RealLine(int);
  absl::Status Real(int);
  absl::Status Text(int length_bytes);
  absl::Status Bytes(int length_bytes);
  absl::Status QuotedLine(int);
  absl::Status UnicodeLine(int);
  absl::Status Mark(int);
  absl::Status PopOne(int);
  absl::Status PopMark(int);
  absl::Status Duplicate(int);
  absl::Status TupleOf(int count);
  absl::Status SequenceOfMark(int);
  absl::Status EmptyMap(int);
  absl::Status MapOfMark(int);
  absl::Status Append(int);
  absl::Status Appends(int);
  absl::Status SetItem(int);
  absl::Status SetItems(int);
  absl::Status Put(int bytes);
  absl::Status PutLine(int);
  absl::Status Memoize(int);
  absl::Status Get(int bytes);
  absl::Status GetLine(int);
  absl::Status Global(int);
  absl::Status StackGlobal(int);
  absl::Status Reduce(int);
  absl::Status NewWithNames(int);
  absl::Status Instance(int);
  absl::Status ObjectOfMark(int);
  absl::Status Build(int);
  absl::Status Persistent(int);
  absl::Status NotSupported(int code);

  absl::Status PushName(std::string_view module, std::string_view name);
  absl::Status CallAndPush(const PickleNode* callable, const PickleNode* arguments);
  absl::Status Remember(uint64_t index);
  absl::Status Recall(uint64_t index);
  absl::Status SetMembers(PickleNode* map, const std::vector<PickleValue>& items);

  const std::string_view bytes_;
  const bool cut_;  // there is more than a pickle may have
  PickleArena& arena_;
  PickleCalls calls_;
  size_t at_ = 0;
  size_t opcode_at_ = 0;
  PickleNode* constants_[3];  // None, False, True
  std::vector<PickleNode*> stack_;
  std::vector<size_t> marks_;
  // A table, since the file chooses the numbers.
  absl::flat_hash_map<uint64_t, PickleNode*> memo_;
};

const PickleMachine::Opcode PickleMachine::kOpcodes[] = {
    {'(', &PickleMachine::Mark},
    {'0', &PickleMachine::PopOne},
    {'1', &PickleMachine::PopMark},
    {'2', &PickleMachine::Duplicate},
    {'B', &PickleMachine::Bytes, 4},
    {'C', &PickleMachine::Bytes, 1},
    {'F', &PickleMachine::RealLine},
    {'G', &PickleMachine::Real},
    {'I', &PickleMachine::IntegerLine, 0},
    {'J', &PickleMachine::Signed, 4},
    {'K', &PickleMachine::Unsigned, 1},
    {'L', &PickleMachine::IntegerLine, 1},
    {'M', &PickleMachine::Unsigned, 2},
    {'N', &PickleMachine::Constant, 0},
    {'P', &PickleMachine::NotSupported, 'P'},
    {'Q', &PickleMachine::Persistent},
    {'R', &PickleMachine::Reduce},
    {'S', &PickleMachine::QuotedLine},
    {'T', &PickleMachine::Text, 4},
    {'U', &PickleMachine::Text, 1},
    {'V', &PickleMachine::UnicodeLine},
    {'X', &PickleMachine::Text, 4},
    {'a', &PickleMachine::Append},
    {'b', &PickleMachine::Build},
    {'c', &PickleMachine::Global},
    {'d', &PickleMachine::MapOfMark},
    {'e', &PickleMachine::Appends},
    {'g', &PickleMachine::GetLine},
    {'h', &PickleMachine::Get, 1},
    {'i', &PickleMachine::Instance},
    {'j', &PickleMachine::Get, 4},
    {'l', &PickleMachine::SequenceOfMark},
    {'o', &PickleMachine::ObjectOfMark},
    {'p', &PickleMachine::PutLine},
    {'q', &PickleMachine::Put, 1},
    {'r', &PickleMachine::Put, 4},
    {'s', &PickleMachine::SetItem},
    {'t', &PickleMachine::SequenceOfMark},
    {'u', &PickleMachine::SetItems},
    {')', &PickleMachine::TupleOf, 0},
    {']', &PickleMachine::TupleOf, 0},
    {'}', &PickleMachine::EmptyMap},
    {0x80, &PickleMachine::Protocol},
    // Creating an object is a call for our purposes.
    {0x81, &PickleMachine::Reduce},
    {0x82, &PickleMachine::NotSupported, 0x82},
    {0x83, &PickleMachine::NotSupported, 0x83},
    {0x84, &PickleMachine::NotSupported, 0x84},
    {0x85, &PickleMachine::TupleOf, 1},
    {0x86, &PickleMachine::TupleOf, 2},
    {0x87, &PickleMachine::TupleOf, 3},
    {0x88, &PickleMachine::Constant, 2},
    {0x89, &PickleMachine::Constant, 1},
    {0x8a, &PickleMachine::Long, 1},
    {0x8b, &PickleMachine::Long, 4},
    {0x8c, &PickleMachine::Text, 1},
    {0x8d, &PickleMachine::Text, 8},
    {0x8e, &PickleMachine::Bytes, 8},
    {0x8f, &PickleMachine::TupleOf, 0},
    {0x90, &PickleMachine::Appends},
    {0x91, &PickleMachine::SequenceOfMark},
    {0x92, &PickleMachine::NewWithNames},
    {0x93, &PickleMachine::StackGlobal},
    {0x94, &PickleMachine::Memoize},
    {0x95, &PickleMachine::Frame},
    {0x96, &PickleMachine::Bytes, 8},
    {0x97, &PickleMachine::NotSupported, 0x97},
    {0x98, &PickleMachine::NotSupported, 0x98},
};

absl::StatusOr<bool> PickleMachine::Step() {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view code, Take(1));
  if (code[0] == '.') {
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) return DamagedPickle("it ends without a value");
    return true;
  }
  static const std::array<const Opcode*, 256> kTable = [] {
    std::array<const Opcode*, 256> table = {};
    for (const Opcode& opcode : kOpcodes) table[opcode.code] = &opcode;
    return table;
  }();
  const auto number = static_cast<uint8_t>(code[0]);
  const Opcode* const opcode = kTable[number];
  if (opcode == nullptr) {
    return DamagedPickle(absl::StrCat("there is no instruction ", static_cast<int>(number)));
  }
  TERCIO_RETURN_IF_ERROR((this->*opcode->run)(opcode->argument));
  return false;
}

absl::StatusOr<std::string_view> PickleMachine::Take(uint64_t count) {
  if (count > bytes_.size() - at_) {
    if (cut_) {
      return RefusedPickle(absl::StrCat("it is larger than ", kLargestPickle >> 20, " MiB"));
    }
    return DamagedPickle("it is truncated");
  }
  const std::string_view taken = bytes_.substr(at_, static_cast<size_t>(count));
  at_ += static_cast<size_t>(count);
  return taken;
}

absl::StatusOr<std::string_view> PickleMachine::TakeLine() {
  const size_t end = bytes_.find('\n', at_);
  // A line without an end reaches beyond the bytes.
  if (end == std::string_view::npos) return Take(bytes_.size() - at_ + 1);
  TERCIO_ASSIGN_OR_RETURN(std::string_view line, Take(end - at_ + 1));
  line.remove_suffix(1);
  return line;
}

absl::StatusOr<uint64_t> PickleMachine::TakeNumber(int bytes) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view taken, Take(static_cast<uint64_t>(bytes)));
  uint64_t number = 0;
  std::memcpy(&number, taken.data(), taken.size());
  return number;
}

absl::StatusOr<std::string_view> PickleMachine::TakeCounted(int length_bytes) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t count, TakeNumber(length_bytes));
  return Take(count);
}

absl::StatusOr<PickleNode*> PickleMachine::Pop() {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) return DamagedPickle("its stack is empty");
  PickleNode* const node = stack_.back();
  stack_.pop_back();
  return node;
}

absl::StatusOr<PickleNode*> PickleMachine::Top(Kind kind) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const node, Pop());
  stack_.push_back(node);
  if (node->kind != kind) return DamagedPickle("it changes a value of another kind");
  return node;
}

absl::StatusOr<std::vector<PickleValue>> PickleMachine::PopToMark() {
  if (marks_.empty()) return DamagedPickle("its stack has no mark");
  std::vector<PickleValue> items;
  items.reserve(stack_.size() - marks_.back());
  for (size_t i = marks_.back(); i < stack_.size(); ++i) items.emplace_back(stack_[i]);
  stack_.resize(marks_.back());
  marks_.pop_back();
  return items;
}

PickleNode* PickleMachine::Push(Kind kind) {
  stack_.push_back(arena_.Add(kind));
  return stack_.back();
}

template <typename Value>
absl::Status PickleMachine::PushValue(Kind kind, Value value) {
  Push(kind)->value = std::move(value);
  return absl::OkStatus();
}

// Strings of Python 2 may be text or bytes, and newer ones may hold halves of characters.
absl::Status PickleMachine::PushText(std::string text) {
  const Kind kind = IsUtf8(text) ? Kind::kText : Kind::kBytes;
  return PushValue(kind, std::move(text));
}

// A two's complement number of any length, its lowest byte first.
absl::Status PickleMachine::PushLong(std::string_view bytes) {
  const bool negative = IsNegative(bytes);
  const char filling = negative ? '\xff' : '\0';
  std::string_view needed = bytes;
  while (needed.size() > 8 && needed.back() == filling) needed.remove_suffix(1);
  uint64_t low = negative ? ~uint64_t{0} : 0;
  // Eight bytes hold the number if their highest bit is its sign.
  if (needed.size() <= 8 && IsNegative(needed) == negative) {
    if (!needed.empty()) std::memcpy(&low, needed.data(), needed.size());
    return PushValue(Kind::kInteger, static_cast<int64_t>(low));
  }
  double real = negative ? -1 : 0;
  for (size_t i = bytes.size(); i-- > 0;) real = real * 256 + static_cast<uint8_t>(bytes[i]);
  return PushValue(Kind::kReal, real);
}

absl::Status PickleMachine::Protocol(int) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t protocol, TakeNumber(1));
  if (protocol <= kNewestProtocol) return absl::OkStatus();
  return RefusedPickle(absl::StrCat("protocol ", protocol, " is not supported by this version"));
}

// Frames only tell how much to read ahead.
absl::Status PickleMachine::Frame(int) { return TakeNumber(8).status(); }

absl::Status PickleMachine::Constant(int which) {
  stack_.push_back(constants_[which]);
  return absl::OkStatus();
}

absl::Status PickleMachine::Unsigned(int bytes) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t number, TakeNumber(bytes));
  return PushValue(Kind::kInteger, static_cast<int64_t>(number));
}

absl::Status PickleMachine::Signed(int bytes) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t number, TakeNumber(bytes));
  return PushValue(Kind::kInteger, int64_t{static_cast<int32_t>(number)});
}

absl::Status PickleMachine::Long(int length_bytes) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view bytes, TakeCounted(length_bytes));
  return PushLong(bytes);
}

absl::Status PickleMachine::IntegerLine(int is_long) {
  TERCIO_ASSIGN_OR_RETURN(std::string_view line, TakeLine());
  // The first protocol had no truth values of its own.
  if (is_long == 0 && (line == "00" || line == "01")) return Constant(line == "01" ? 2 : 1);
  if (is_long != 0 && !line.empty() && line.back() == 'L') line.remove_suffix(1);
  if (const std::optional<int64_t> number = WholeNumber(line)) {
    return PushValue(Kind::kInteger, *number);
  }
  const bool digits = line.find_first_not_of("-0123456789") == std::string_view::npos;
  const std::optional<double> real = digits ? RealNumber(line) : std::nullopt;
  if (!real.has_value()) return DamagedPickle("a line is no whole number");
  return PushValue(Kind::kReal, *real);
}

absl::Status PickleMachine::RealLine(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view line, TakeLine());
  const std::optional<double> real = RealNumber(line);
  if (!real.has_value()) return DamagedPickle("a line is no number");
  return PushValue(Kind::kReal, *real);
}

absl::Status PickleMachine::Real(int) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t bits, TakeNumber(8));
  return PushValue(Kind::kReal, std::bit_cast<double>(__builtin_bswap64(bits)));
}

absl::Status PickleMachine::Text(int length_bytes) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view text, TakeCounted(length_bytes));
  return PushText(std::string(text));
}

absl::Status PickleMachine::Bytes(int length_bytes) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view bytes, TakeCounted(length_bytes));
  return PushValue(Kind::kBytes, std::string(bytes));
}

absl::Status PickleMachine::QuotedLine(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view line, TakeLine());
  std::optional<std::string> text = UnquotePythonString(line);
  if (!text.has_value()) return DamagedPickle("a line is no string");
  return PushText(*std::move(text));
}

absl::Status PickleMachine::UnicodeLine(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view line, TakeLine());
  std::optional<std::string> text = DecodeRawUnicode(line);
  if (!text.has_value()) return DamagedPickle("a line is no text");
  return PushText(*std::move(text));
}

absl::Status PickleMachine::Mark(int) {
  marks_.push_back(stack_.size());
  return absl::OkStatus();
}

absl::Status PickleMachine::PopOne(int) { return Pop().status(); }

absl::Status PickleMachine::PopMark(int) { return PopToMark().status(); }

absl::Status PickleMachine::Duplicate(int) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const node, Pop());
  stack_.insert(stack_.end(), {node, node});
  return absl::OkStatus();
}

// Lists, tuples and sets are all sequences here.
absl::Status PickleMachine::TupleOf(int count) {
  std::vector<PickleValue> items(static_cast<size_t>(count), PickleValue(nullptr));
  for (int i = count; i-- > 0;) {
    TERCIO_ASSIGN_OR_RETURN(PickleNode* const node, Pop());
    items[static_cast<size_t>(i)] = PickleValue(node);
  }
  return PushValue(Kind::kSequence, std::move(items));
}

absl::Status PickleMachine::SequenceOfMark(int) {
  TERCIO_ASSIGN_OR_RETURN(std::vector<PickleValue> items, PopToMark());
  return PushValue(Kind::kSequence, std::move(items));
}

absl::Status PickleMachine::EmptyMap(int) { return PushValue(Kind::kMap, PickleMembers()); }

absl::Status PickleMachine::MapOfMark(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::vector<PickleValue> items, PopToMark());
  PickleNode* const map = Push(Kind::kMap);
  map->value = PickleMembers();
  return SetMembers(map, items);
}

absl::Status PickleMachine::Append(int) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const item, Pop());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const list, Top(Kind::kSequence));
  std::get<std::vector<PickleValue>>(list->value).emplace_back(item);
  return absl::OkStatus();
}

absl::Status PickleMachine::Appends(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::vector<PickleValue> items, PopToMark());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const list, Top(Kind::kSequence));
  auto& values = std::get<std::vector<PickleValue>>(list->value);
  values.insert(values.end(), items.begin(), items.end());
  return absl::OkStatus();
}

absl::Status PickleMachine::SetItem(int) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const value, Pop());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const key, Pop());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const map, Top(Kind::kMap));
  std::get<PickleMembers>(map->value).emplace_back(PickleValue(key), PickleValue(value));
  return absl::OkStatus();
}

absl::Status PickleMachine::SetItems(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::vector<PickleValue> items, PopToMark());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const map, Top(Kind::kMap));
  return SetMembers(map, items);
}

absl::Status PickleMachine::SetMembers(PickleNode* map, const std::vector<PickleValue>& items) {
  if (items.size() % 2 != 0) return DamagedPickle("a key has no value");
  auto& members = std::get<PickleMembers>(map->value);
  for (size_t i = 0; i < items.size(); i += 2) members.emplace_back(items[i], items[i + 1]);
  return absl::OkStatus();
}

absl::Status PickleMachine::Remember(uint64_t index) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const node, Pop());
  stack_.push_back(node);
  memo_[index] = node;
  return absl::OkStatus();
}

absl::Status PickleMachine::Recall(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) {
    return DamagedPickle(absl::StrCat("it refers to value ", index, ", which it did not make"));
  }
  stack_.push_back(found->second);
  return absl::OkStatus();
}

absl::Status PickleMachine::Put(int bytes) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t index, TakeNumber(bytes));
  return Remember(index);
}

absl::Status PickleMachine::PutLine(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view line, TakeLine());
  const std::optional<int64_t> index = WholeNumber(line);
  if (!index.has_value() || *index < 0) return DamagedPickle("a line is no index");
  return Remember(static_cast<uint64_t>(*index));
}

absl::Status PickleMachine::Memoize(int) { return Remember(memo_.size()); }

absl::Status PickleMachine::Get(int bytes) {
  TERCIO_ASSIGN_OR_RETURN(const uint64_t index, TakeNumber(bytes));
  return Recall(index);
}

absl::Status PickleMachine::GetLine(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view line, TakeLine());
  const std::optional<int64_t> index = WholeNumber(line);
  if (!index.has_value() || *index < 0) return DamagedPickle("a line is no index");
  return Recall(static_cast<uint64_t>(*index));
}

absl::Status PickleMachine::PushName(std::string_view module, std::string_view name) {
  // Names are put together from two texts, and must not grow beyond what the pickle holds.
  if (module.size() + name.size() > kLongestName) return DamagedPickle("a name is too long");
  const std::string full = absl::StrCat(std::string(module), ".", std::string(name));
  const std::optional<KnownName> known = FindKnownName(full);
  if (!known.has_value()) {
    return RefusedPickle(absl::StrCat(
        "it names ", absl::Utf8SafeCEscape(full),
        ", and only tensors, plain containers and the usual arguments of training scripts are "
        "loaded; save nothing else, for example model.state_dict()"));
  }
  auto object = std::make_unique<PickleObject>();
  object->class_name = &*arena_.names.insert(full).first;
  object->known = *known;
  return PushValue(Kind::kObject, std::move(object));
}

absl::Status PickleMachine::Global(int) {
  TERCIO_ASSIGN_OR_RETURN(const std::string_view module, TakeLine());
  TERCIO_ASSIGN_OR_RETURN(const std::string_view name, TakeLine());
  return PushName(module, name);
}

absl::Status PickleMachine::StackGlobal(int) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const name, Pop());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const module, Pop());
  if (name->kind != Kind::kText || module->kind != Kind::kText) {
    return DamagedPickle("a name is no text");
  }
  return PushName(std::get<std::string>(module->value), std::get<std::string>(name->value));
}

absl::Status PickleMachine::CallAndPush(const PickleNode* callable, const PickleNode* arguments) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const result, calls_.Call(callable, arguments));
  stack_.push_back(result);
  return absl::OkStatus();
}

absl::Status PickleMachine::Reduce(int) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const arguments, Pop());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const callable, Pop());
  return CallAndPush(callable, arguments);
}

absl::Status PickleMachine::NewWithNames(int) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const named, Pop());
  if (named->kind != Kind::kMap || !std::get<PickleMembers>(named->value).empty()) {
    return RefusedPickle("named arguments are not supported by this version");
  }
  return Reduce(0);
}

absl::Status PickleMachine::Instance(int) {
  TERCIO_RETURN_IF_ERROR(SequenceOfMark(0));
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const arguments, Pop());
  TERCIO_RETURN_IF_ERROR(Global(0));
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const callable, Pop());
  return CallAndPush(callable, arguments);
}

absl::Status PickleMachine::ObjectOfMark(int) {
  TERCIO_ASSIGN_OR_RETURN(std::vector<PickleValue> items, PopToMark());
  if (items.empty()) return DamagedPickle("an object has no class");
  const PickleNode* const callable = items.front().node();
  items.erase(items.begin());
  PickleNode* const arguments = arena_.Add(Kind::kSequence);
  arguments->value = std::move(items);
  return CallAndPush(callable, arguments);
}

absl::Status PickleMachine::Build(int) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const state, Pop());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const node, Pop());
  stack_.push_back(node);
  // state_dict() hangs versions of modules on its map, which say nothing about the weights.
  if (node->kind == Kind::kMap || node->kind == Kind::kTensor) return absl::OkStatus();
  if (node->kind != Kind::kObject) return DamagedPickle("it sets attributes of a plain value");
  PickleObject& object = *std::get<std::unique_ptr<PickleObject>>(node->value);
  if (object.known.callable != PickleCallable::kNone) {
    return RefusedPickle("it sets attributes of a class");
  }
  object.state = state;
  return absl::OkStatus();
}

absl::Status PickleMachine::Persistent(int) {
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const id, Pop());
  TERCIO_ASSIGN_OR_RETURN(PickleNode* const storage, calls_.MakeStorage(id));
  stack_.push_back(storage);
  return absl::OkStatus();
}

absl::Status PickleMachine::NotSupported(int code) {
  return RefusedPickle(absl::StrCat("instruction ", code, " (",
                                    code == 'P'   ? "a persistent id as text"
                                    : code < 0x90 ? "a registered extension"
                                                  : "a buffer outside of the pickle",
                                    ") is not supported by this version"));
}

}  // namespace

absl::StatusOr<PickleResult> ReadPickle(std::string_view bytes, PickleArena* arena) {
  return PickleMachine(bytes, arena).Run();
}

}  // namespace tercio::checkpoint
