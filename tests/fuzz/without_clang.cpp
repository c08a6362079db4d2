// Stands in for libFuzzer where there is no clang: changes the seeds at random (the same on every
// run) for some seconds. It knows nothing of coverage.   PROGRAM SECONDS FOLDER
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

std::vector<std::string> read_seeds(const char* folder) {
  std::vector<std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

/// Bytes are replaced, taken out, or taken over from another place.
void change(std::string& text, std::mt19937_64& random) {
  const auto below = [&](size_t bound) { return bound == 0 ? 0 : random() % bound; };
  for (size_t i = below(8) + 1; i > 0; --i) {
    const size_t place = below(text.size());
    switch (below(4)) {
      case 0:
        text.resize(place);
        break;
      case 1:
        text.erase(place, below(8));
        break;
      case 2:
        text.insert(place, text.substr(below(text.size()), below(32)));
        break;
      default:
        if (!text.empty()) {
          text[place] = static_cast<char>(random());
        }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    return 2;
  }
  const auto seeds = read_seeds(argv[2]);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  std::mt19937_64 random(1);
  size_t runs = 0;
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    std::string text = seeds[runs % seeds.size()];
    if (runs >= seeds.size()) {
      change(text, random);
    }
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
  std::printf("%zu runs, without coverage\n", runs);
}
