#include "checkpoint/torch/torch_writer.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "checkpoint/torch/crc32.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace tercio::checkpoint {
namespace {

constexpr char kArchiveFolder[] = "archive/";
// torch aligns the data of records, so that a file can be mapped.
constexpr int64_t kRecordAlignment = 64;
// Sizes and offsets from here on need the fields of zip64.
constexpr int64_t kZip64Bound = std::numeric_limits<uint32_t>::max();
constexpr uint16_t kSizesFollow = 1u << 3;  // checksum and sizes come behind the data
constexpr uint16_t kVersionNeeded = 45;     // zip64
constexpr uint16_t kNoTime = 0;
constexpr uint16_t kFirstDate = 1 << 5 | 1;  // 1 January 1980: equal content gives equal bytes

void AppendLittle(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

struct TorchNames {
  std::string_view dtype;
  std::string_view storage;
};

TorchNames NamesOfFormat(FloatFormat format) {
  switch (format) {
    case FloatFormat::kF16:
      return {"float16", "HalfStorage"};
    case FloatFormat::kBF16:
      return {"bfloat16", "BFloat16Storage"};
    case FloatFormat::kF64:
      return {"float64", "DoubleStorage"};
    case FloatFormat::kF32:
      break;
  }
  return {"float32", "FloatStorage"};
}

// The opcodes are those of Python's Lib/pickle.py, of protocol 2 and before.
class PickleWriter {
 public:
  std::string Write(const TorchValue& root) {
    out_ = "\x80\x02";
    Value(root);
    out_.push_back('.');
    return std::move(out_);
  }
  // The bytes of each tensor, in their order.
  std::vector<int64_t> sizes() { return std::move(sizes_); }

 private:
  void Value(const TorchValue& value) {
    std::visit([this](const auto& form) { Form(form); }, value.form);
  }
  void Form(std::monostate) { out_.push_back('N'); }
  void Form(bool value) { out_.push_back(value ? '\x88' : '\x89'); }
  void Form(int64_t value) {
    if (value >= std::numeric_limits<int32_t>::min() &&
        value <= std::numeric_limits<int32_t>::max()) {
      out_.push_back('J');
      AppendLittle(static_cast<uint64_t>(value), 4, &out_);
      return;
    }
    out_.append("\x8a\x08");  // a number of eight bytes
    AppendLittle(static_cast<uint64_t>(value), 8, &out_);
  }
  void Form(double value) {
    out_.push_back('G');
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    for (int i = 7; i >= 0; --i) out_.push_back(static_cast<char>(bits >> (8 * i)));
  }
  void Form(const std::string& text) {
    out_.push_back('X');
    AppendLittle(text.size(), 4, &out_);
    out_.append(text);
  }
  void Form(const TorchDict& dict) {
    out_.append("}(");
    for (const auto& [name, value] : dict.members) {
      Form(name);
      Value(value);
    }
    out_.push_back('u');
  }
  void Form(const TorchNamespace& object) {
    Global("argparse", "Namespace");
    out_.append(")\x81");  // made from no arguments
    Form(TorchDict{object.members});
    out_.push_back('b');
  }
  void Form(const TorchDtype& dtype) { Global("torch", NamesOfFormat(dtype.format).dtype); }
  void Form(const TorchTensorForm& tensor) {
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    Global("torch._utils", "_rebuild_tensor_v2");
    // Each tensor has a storage of its own, whose record is named by its number.
    out_.append("((");
    Form(std::string("storage"));
    Global("torch", NamesOfFormat(tensor.format).storage);
    Form(absl::StrCat(sizes_.size()));
    Form(std::string("cpu"));
    Form(elements);
    out_.append("tQ");
    Form(int64_t{0});  // offset in the storage
    std::vector<int64_t> strides(tensor.shape.size(), 1);
    for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * tensor.shape[i];
    Tuple(tensor.shape);
    Tuple(strides);
    Form(false);  // needs no gradient
    Global("collections", "OrderedDict");
    out_.append(")RtR");
    sizes_.push_back(elements * BytesOf(tensor.format));
  }

  void Tuple(const std::vector<int64_t>& numbers) {
    out_.push_back('(');
    for (const int64_t number : numbers) Form(number);
    out_.push_back('t');
  }
  void Global(std::string_view module, std::string_view name) {
    absl::StrAppend(&out_, "c", std::string(module), "\n", std::string(name), "\n");
  }

  std::string out_;
  std::vector<int64_t> sizes_;
};

// A field of four bytes that cannot hold its number has all bits set.
uint64_t NarrowField(int64_t value) { return static_cast<uint64_t>(std::min(value, kZip64Bound)); }

// The extra field of zip64 for a local header: both sizes, which are equal for a stored record.
std::string Zip64Sizes(int64_t bytes) {
  std::string extra;
  AppendLittle(1, 2, &extra);
  AppendLittle(16, 2, &extra);
  AppendLittle(static_cast<uint64_t>(bytes), 8, &extra);
  AppendLittle(static_cast<uint64_t>(bytes), 8, &extra);
  return extra;
}

}  // namespace

TorchWriter::TorchWriter(const TorchValue& root) {
  PickleWriter pickle;
  pickle_ = pickle.Write(root);
  sizes_ = pickle.sizes();
  for (const int64_t size : sizes_) tensor_bytes_ += size;
}

absl::Status TorchWriter::Put(std::string_view bytes, const TakePart& write) {
  offset_ += static_cast<int64_t>(bytes.size());
  return write(bytes);
}

absl::Status TorchWriter::Begin(Record* record, const TakePart& write) {
  record->header = offset_;
  std::string extra = record->bytes >= kZip64Bound ? Zip64Sizes(record->bytes) : std::string();
  const auto at = [&] {
    return offset_ + 30 + static_cast<int64_t>(record->name.size() + extra.size());
  };
  // torch fills up with a field of this name; its own header is four bytes.
  const int64_t padding = (kRecordAlignment - (at() + 4) % kRecordAlignment) % kRecordAlignment;
  extra.append("FB");
  AppendLittle(static_cast<uint64_t>(padding), 2, &extra);
  extra.append(static_cast<size_t>(padding), 'Z');
  std::string header = "PK\x03\x04";
  AppendLittle(kVersionNeeded, 2, &header);
  AppendLittle(kSizesFollow, 2, &header);
  AppendLittle(0, 2, &header);  // stored
  AppendLittle(kNoTime, 2, &header);
  AppendLittle(kFirstDate, 2, &header);
  AppendLittle(0, 4, &header);  // the checksum is not known yet
  const uint64_t size = record->bytes >= kZip64Bound ? static_cast<uint64_t>(kZip64Bound) : 0;
  AppendLittle(size, 4, &header);
  AppendLittle(size, 4, &header);
  AppendLittle(record->name.size(), 2, &header);
  AppendLittle(extra.size(), 2, &header);
  return Put(absl::StrCat(header, record->name, extra), write);
}

absl::Status TorchWriter::End(const Record& record, const TakePart& write) {
  std::string descriptor = "PK\x07\x08";
  AppendLittle(record.crc, 4, &descriptor);
  const int width = record.bytes >= kZip64Bound ? 8 : 4;
  AppendLittle(static_cast<uint64_t>(record.bytes), width, &descriptor);
  AppendLittle(static_cast<uint64_t>(record.bytes), width, &descriptor);
  return Put(descriptor, write);
}

absl::Status TorchWriter::WriteRecord(const std::string& name, std::string_view content,
                                      const TakePart& write) {
  Record record{kArchiveFolder + name, static_cast<int64_t>(content.size()), 0, Crc32(0, content)};
  TERCIO_RETURN_IF_ERROR(Begin(&record, write));
  TERCIO_RETURN_IF_ERROR(Put(content, write));
  TERCIO_RETURN_IF_ERROR(End(record, write));
  records_.push_back(std::move(record));
  return absl::OkStatus();
}

// Ends the tensor whose bytes are complete, and begins the next one that has any.
absl::Status TorchWriter::EndFullTensors(const TakePart& write) {
  while (left_ == 0) {
    if (in_tensor_) {
      TERCIO_RETURN_IF_ERROR(End(records_.back(), write));
      in_tensor_ = false;
      ++next_;
    }
    if (next_ == sizes_.size()) return absl::OkStatus();
    Record record{absl::StrCat(kArchiveFolder, "data/", next_), sizes_[next_]};
    TERCIO_RETURN_IF_ERROR(Begin(&record, write));
    records_.push_back(std::move(record));
    in_tensor_ = true;
    left_ = sizes_[next_];
  }
  return absl::OkStatus();
}

absl::Status TorchWriter::Add(std::string_view part, const TakePart& write) {
  if (records_.empty()) {
    // torch looks for the folder of the archive in the name of its first record.
    TERCIO_RETURN_IF_ERROR(WriteRecord("data.pkl", pickle_, write));
    TERCIO_RETURN_IF_ERROR(WriteRecord("byteorder", "little", write));
  }
  TERCIO_RETURN_IF_ERROR(EndFullTensors(write));
  while (!part.empty()) {
    TERCIO_CHECK_GT(left_, 0);
    const std::string_view now = part.substr(0, static_cast<size_t>(left_));
    records_.back().crc = Crc32(records_.back().crc, now);
    TERCIO_RETURN_IF_ERROR(Put(now, write));
    left_ -= static_cast<int64_t>(now.size());
    part.remove_prefix(now.size());
    TERCIO_RETURN_IF_ERROR(EndFullTensors(write));
  }
  return absl::OkStatus();
}

absl::Status TorchWriter::Finish(const TakePart& write) {
  TERCIO_RETURN_IF_ERROR(Add("", write));  // a file without tensors has no parts
  TERCIO_CHECK(next_ == sizes_.size());
  TERCIO_RETURN_IF_ERROR(WriteRecord("version", "3\n", write));
  return WriteDirectory(write);
}

absl::Status TorchWriter::WriteDirectory(const TakePart& write) {
  const int64_t begin = offset_;
  for (const Record& record : records_) {
    const bool large = record.bytes >= kZip64Bound;
    const bool far = record.header >= kZip64Bound;
    std::string extra;
    if (large || far) {
      AppendLittle(1, 2, &extra);
      AppendLittle((large ? 16u : 0u) + (far ? 8u : 0u), 2, &extra);
      if (large) AppendLittle(static_cast<uint64_t>(record.bytes), 8, &extra);
      if (large) AppendLittle(static_cast<uint64_t>(record.bytes), 8, &extra);
      if (far) AppendLittle(static_cast<uint64_t>(record.header), 8, &extra);
    }
    std::string entry = "PK\x01\x02";
    AppendLittle(kVersionNeeded, 2, &entry);  // written by
    AppendLittle(kVersionNeeded, 2, &entry);
    AppendLittle(kSizesFollow, 2, &entry);
    AppendLittle(0, 2, &entry);  // stored
    AppendLittle(kNoTime, 2, &entry);
    AppendLittle(kFirstDate, 2, &entry);
    AppendLittle(record.crc, 4, &entry);
    AppendLittle(NarrowField(record.bytes), 4, &entry);
    AppendLittle(NarrowField(record.bytes), 4, &entry);
    AppendLittle(record.name.size(), 2, &entry);
    AppendLittle(extra.size(), 2, &entry);
    entry.append(10, '\0');  // no comment, first disk, no attributes
    AppendLittle(NarrowField(record.header), 4, &entry);
    TERCIO_RETURN_IF_ERROR(Put(absl::StrCat(entry, record.name, extra), write));
  }
  return WriteEnd(begin, write);
}

absl::Status TorchWriter::WriteEnd(int64_t directory, const TakePart& write) {
  const int64_t bytes = offset_ - directory;
  const auto count = static_cast<uint64_t>(records_.size());
  constexpr uint64_t kMostRecords = std::numeric_limits<uint16_t>::max();
  std::string end;
  if (count >= kMostRecords || std::max(bytes, directory) >= kZip64Bound) {
    end.append("PK\x06\x06");
    AppendLittle(44, 8, &end);  // size of the rest
    AppendLittle(kVersionNeeded, 2, &end);
    AppendLittle(kVersionNeeded, 2, &end);
    AppendLittle(0, 8, &end);  // this and the directory's disk are the first
    AppendLittle(count, 8, &end);
    AppendLittle(count, 8, &end);
    AppendLittle(static_cast<uint64_t>(bytes), 8, &end);
    AppendLittle(static_cast<uint64_t>(directory), 8, &end);
    end.append("PK\x06\x07");
    AppendLittle(0, 4, &end);
    AppendLittle(static_cast<uint64_t>(offset_), 8, &end);
    AppendLittle(1, 4, &end);  // number of disks
  }
  end.append("PK\x05\x06");
  AppendLittle(0, 4, &end);
  AppendLittle(std::min(count, kMostRecords), 2, &end);
  AppendLittle(std::min(count, kMostRecords), 2, &end);
  AppendLittle(NarrowField(bytes), 4, &end);
  AppendLittle(NarrowField(directory), 4, &end);
  AppendLittle(0, 2, &end);  // no comment
  return Put(end, write);
}

}  // namespace tercio::checkpoint
