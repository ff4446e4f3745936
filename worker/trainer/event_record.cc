#include "worker/trainer/event_record.h"

#include <array>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace tercio::trainer {
namespace {

using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

// A message under construction.
class Message {
 public:
  Message& Int(int field, uint64_t value) {
    return Write([&](CodedOutputStream& out) {
      out.WriteTag(Tag(field, kVarint));
      out.WriteVarint64(value);
    });
  }
  Message& Double(int field, double value) {
    return Write([&](CodedOutputStream& out) {
      out.WriteTag(Tag(field, kFixed64));
      out.WriteLittleEndian64(__builtin_bit_cast(uint64_t, value));
    });
  }
  Message& Float(int field, float value) {
    return Write([&](CodedOutputStream& out) {
      out.WriteTag(Tag(field, kFixed32));
      out.WriteLittleEndian32(__builtin_bit_cast(uint32_t, value));
    });
  }
  // A string, or a nested message.
  Message& Bytes(int field, const std::string& value) {
    return Write([&](CodedOutputStream& out) {
      out.WriteTag(Tag(field, kBytes));
      out.WriteVarint32(static_cast<uint32_t>(value.size()));
      out.WriteString(value);
    });
  }
  const std::string& bytes() const { return bytes_; }

 private:
  static uint32_t Tag(int field, WireType type) {
    return static_cast<uint32_t>(field) << 3 | static_cast<uint32_t>(type);
  }
  template <typename Body>
  Message& Write(const Body& body) {
    StringOutputStream stream(&bytes_);
    CodedOutputStream out(&stream);
    body(out);
    return *this;
  }

  std::string bytes_;
};

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

// A checksum of bytes that hold checksums themselves would be weak: hence rotated and shifted.
uint32_t MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string Framed(const Message& event) {
  std::string record;
  AppendLittleEndian(event.bytes().size(), 8, &record);
  AppendLittleEndian(MaskedCrc(record), 4, &record);
  record += event.bytes();
  AppendLittleEndian(MaskedCrc(event.bytes()), 4, &record);
  return record;
}

// Event: wall_time = 1, step = 2.
Message EventOf(double wall_time, int64_t step) {
  Message event;
  event.Double(1, wall_time).Int(2, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = MakeCrcTable();
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) crc = table[(crc ^ static_cast<uint8_t>(byte)) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffffu;
}

std::string VersionRecord(double wall_time) {
  // Event.file_version = 3
  return Framed(EventOf(wall_time, 0).Bytes(3, "brain.Event:2"));
}

std::string StartRecord(double wall_time, int64_t step) {
  // Event.session_log = 7; SessionLog.status = 1, START = 1
  return Framed(EventOf(wall_time, step).Bytes(7, Message().Int(1, 1).bytes()));
}

std::string ScalarsRecord(double wall_time, int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars) {
  // Event.summary = 5; Summary.value = 1; Value.tag = 1, simple_value = 2
  Message summary;
  for (const auto& [tag, value] : scalars) {
    summary.Bytes(1, Message().Bytes(1, tag).Float(2, static_cast<float>(value)).bytes());
  }
  return Framed(EventOf(wall_time, step).Bytes(5, summary.bytes()));
}

std::string TextRecord(double wall_time, int64_t step, const std::string& tag,
                       const std::string& text) {
  // Value.tensor = 8: TensorProto.dtype = 1 (DT_STRING = 7), tensor_shape = 2 (dim = 2: size = 1),
  // string_val = 8
  const Message shape = Message().Bytes(2, Message().Int(1, 1).bytes());
  const Message tensor = Message().Int(1, 7).Bytes(2, shape.bytes()).Bytes(8, text);
  // Value.metadata = 9: SummaryMetadata.plugin_data = 1 (plugin_name = 1), data_class = 4
  // (DATA_CLASS_TENSOR = 2)
  const Message metadata = Message().Bytes(1, Message().Bytes(1, "text").bytes()).Int(4, 2);
  const Message value = Message().Bytes(1, tag).Bytes(8, tensor.bytes()).Bytes(9, metadata.bytes());
  return Framed(EventOf(wall_time, step).Bytes(5, Message().Bytes(1, value.bytes()).bytes()));
}

}  // namespace tercio::trainer
