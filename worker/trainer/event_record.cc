#include "worker/trainer/event_record.h"

#include <array>

#include "proto/tercio/tensorboard/event.pb.h"

namespace tercio::trainer {
namespace {

std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

// A checksum of bytes that hold checksums themselves would be weak: hence rotated and shifted.
uint32_t MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string Framed(const tensorboard::Event& event) {
  const std::string bytes = event.SerializeAsString();
  std::string record;
  AppendLittleEndian(bytes.size(), 8, &record);
  AppendLittleEndian(MaskedCrc(record), 4, &record);
  record += bytes;
  AppendLittleEndian(MaskedCrc(bytes), 4, &record);
  return record;
}

tensorboard::Event EventOf(double wall_time, int64_t step) {
  tensorboard::Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
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
  tensorboard::Event event = EventOf(wall_time, 0);
  event.set_file_version("brain.Event:2");
  return Framed(event);
}

std::string StartRecord(double wall_time, int64_t step) {
  tensorboard::Event event = EventOf(wall_time, step);
  event.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  return Framed(event);
}

std::string ScalarsRecord(double wall_time, int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars) {
  tensorboard::Event event = EventOf(wall_time, step);
  tensorboard::Summary* summary = event.mutable_summary();
  for (const auto& [tag, scalar] : scalars) {
    tensorboard::Summary::Value* value = summary->add_value();
    value->set_tag(tag);
    value->set_simple_value(static_cast<float>(scalar));
  }
  return Framed(event);
}

std::string TextRecord(double wall_time, int64_t step, const std::string& tag,
                       const std::string& text) {
  tensorboard::Event event = EventOf(wall_time, step);
  tensorboard::Summary::Value* value = event.mutable_summary()->add_value();
  value->set_tag(tag);
  tensorboard::TensorProto* tensor = value->mutable_tensor();
  tensor->set_dtype(tensorboard::DT_STRING);
  tensor->mutable_tensor_shape()->add_dim()->set_size(1);
  tensor->add_string_val(text);
  tensorboard::SummaryMetadata* metadata = value->mutable_metadata();
  metadata->mutable_plugin_data()->set_plugin_name("text");
  metadata->set_data_class(tensorboard::DATA_CLASS_TENSOR);
  return Framed(event);
}

}  // namespace tercio::trainer
