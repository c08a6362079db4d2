#include <fairshard/models/tokens.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstring>

namespace fairshard::models {
namespace {

constexpr const char* kTokens = "tokens";

}  // namespace

TokenWindows::TokenWindows(const std::string& file, int64_t length) : file_(file), length_(length) {
  TORCH_CHECK_VALUE(length > 0, "TokenWindows: length is ", length, ", but must be positive");
  const store::StoredTensor* const tokens = file_.find(kTokens);
  TORCH_CHECK_VALUE(tokens, file, " has no tensor '", kTokens,
                    "': is it what `python -m fairshard.tokenize` wrote?");
  const bool is_integral = tokens->dtype == at::kUInt16 || tokens->dtype == at::kUInt32 ||
                           tokens->dtype == at::kInt || tokens->dtype == at::kLong;
  TORCH_CHECK_VALUE(tokens->sizes.size() == 1 && is_integral, file, ": '", kTokens, "' is ",
                    tokens->dtype, " ", at::IntArrayRef(tokens->sizes),
                    ", but must be one-dimensional, of uint16, uint32, int32 or int64");
  size_ = tokens->sizes[0] / length;
  TORCH_CHECK_VALUE(size_ > 0, file, " has ", tokens->sizes[0], " tokens, but a window ", length);
}

at::Tensor TokenWindows::batch(const std::vector<size_t>& numbers) const {
  const store::StoredTensor& tokens = file_.at(kTokens);
  const auto bytes = file_.bytes(tokens);
  const auto count = static_cast<int64_t>(numbers.size());
  const at::Tensor windows = at::empty({count, length_}, tokens.dtype);
  const size_t width = static_cast<size_t>(length_) * windows.itemsize();
  auto* target = static_cast<char*>(windows.mutable_data_ptr());
  for (const size_t number : numbers) {
    TORCH_CHECK_INDEX(number < static_cast<size_t>(size_), "TokenWindows: window ", number, " of ",
                      size_);
    std::memcpy(target, bytes.data() + number * width, width);
    target += width;
  }
  return windows.to(at::kLong);
}

}  // namespace fairshard::models
