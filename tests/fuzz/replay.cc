// Runs a fuzz target over files instead of under libFuzzer: each file as it is, then changed in a
// number of ways that a seed decides. So the property of each target is checked by any compiler,
// within seconds.
//   TARGET_replay SEED CHANGES FILE...
// Ends with 0, or dies where the property does not hold; the file in question is the last that it
// named on standard error.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// One of the changes that libFuzzer makes, too: a byte set, a bit flipped, a range removed or
// repeated, an end cut off.
std::string Changed(std::string input, std::mt19937_64& random) {
  const auto below = [&random](size_t limit) {
    return limit == 0 ? 0 : static_cast<size_t>(random() % limit);
  };
  for (size_t changes = 1 + below(4); changes > 0 && !input.empty(); --changes) {
    const size_t place = below(input.size());
    const size_t length = 1 + below(input.size() - place);
    switch (below(5)) {
      case 0:
        input[place] = static_cast<char>(random());
        break;
      case 1:
        input[place] = static_cast<char>(input[place] ^ (1 << below(8)));
        break;
      case 2:
        input.erase(place, length);
        break;
      case 3:
        input.insert(place, input.substr(place, length < 64 ? length : 64));
        break;
      default:
        input.resize(place);
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s SEED CHANGES FILE...\n", argv[0]);
    return 2;
  }
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  const long changes = std::strtol(argv[2], nullptr, 10);
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    const std::string seed{std::istreambuf_iterator<char>(file), {}};
    if (!file || seed.empty()) {
      std::fprintf(stderr, "error: %s cannot be read, or is empty\n", argv[i]);
      return 1;
    }
    std::fprintf(stderr, "%s\n", argv[i]);
    Run(seed);
    for (long change = 0; change < changes; ++change) Run(Changed(seed, random));
  }
  return 0;
}
