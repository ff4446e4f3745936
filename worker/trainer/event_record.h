// Records of TensorBoard's event files, as bytes.
//
// A file is a sequence of TFRecords (length, masked CRC32C of the length, data, masked CRC32C of
// the data; little endian), each with an `Event` message (proto/tercio/tensorboard/event.proto).
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tercio::trainer {

// CRC32C (Castagnoli), as in RFC 3720.
uint32_t Crc32c(std::string_view bytes);

// The first record of every file, which names the format.
std::string VersionRecord(double wall_time);

// Marks a start at `step`: readers drop the steps from there on of an attempt that broke.
std::string StartRecord(double wall_time, int64_t step);

// Values of one step. TensorBoard keeps them as floats of 32 bits.
std::string ScalarsRecord(double wall_time, int64_t step,
                          const std::vector<std::pair<std::string, double>>& scalars);

// A text (Markdown) under `tag`.
std::string TextRecord(double wall_time, int64_t step, const std::string& tag,
                       const std::string& text);

}  // namespace tercio::trainer
