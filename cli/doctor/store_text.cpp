#include "store_text.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace fairshard::cli::doctor {
namespace {

/// With its key and headers it is shorter than what every link must carry (576 bytes).
constexpr size_t kPiece = 300;

std::string piece_key(const std::string& key, size_t number) { return c10::str(key, "/", number); }

}  // namespace

void put_text(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key,
              const std::string& text) {
  size_t count = 0;
  for (size_t begin = 0; begin < text.size(); begin += kPiece) {
    const std::string piece = piece_key(key, count++);
    store->set(piece, text.substr(begin, kPiece));
    // Until it has come, nothing follows that would be joined to it.
    TORCH_CHECK(store->check({piece}), "the store has lost ", piece);
  }
  store->set(key, std::to_string(count));
}

std::string get_text(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key) {
  std::string text;
  const size_t count = std::stoul(store->get_to_str(key));
  for (size_t number = 0; number < count; ++number) {
    text += store->get_to_str(piece_key(key, number));
  }
  return text;
}

}  // namespace fairshard::cli::doctor
