#include "gpt/sizes.h"

#include <c10/util/Exception.h>

namespace gpt {
namespace {

GptOptions sized(int64_t layers, int64_t width, int64_t heads, int64_t context) {
  return GptOptions().layers(layers).width(width).heads(heads).context(context);
}

}  // namespace

const std::vector<NamedSize>& named_sizes() {
  static const std::vector<NamedSize> sizes{
      {"nano", sized(2, 64, 2, 64)},         // 0.1 million parameters
      {"micro", sized(4, 128, 4, 128)},      // 0.8 million
      {"small", sized(6, 384, 6, 256)},      // 11 million
      {"medium", sized(12, 768, 12, 512)},   // 86 million
      {"large", sized(24, 1024, 16, 1024)},  // 304 million
      {"huge", sized(24, 2048, 16, 1024)},   // 1.2 billion
  };
  return sizes;
}

const GptOptions& size_named(const std::string& name) {
  std::string names;
  for (const NamedSize& size : named_sizes()) {
    if (size.name == name) {
      return size.options;
    }
    names += (names.empty() ? "" : ", ") + size.name;
  }
  TORCH_CHECK_VALUE(false, "there is no size '", name, "': the sizes are ", names);
}

}  // namespace gpt
