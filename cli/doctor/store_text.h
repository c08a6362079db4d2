#pragma once
// Texts of some length, from rank to rank.

#include <c10/util/intrusive_ptr.h>

#include <string>

namespace c10d {
class Store;
}  // namespace c10d

namespace fairshard::cli::doctor {

/// Puts a text into a store, in pieces that pass even where long packets are lost: to say so is
/// what this program is for. The key itself comes last. Blocks.
void put_text(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key,
              const std::string& text);

/// A text whose key is there.
std::string get_text(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key);

}  // namespace fairshard::cli::doctor
