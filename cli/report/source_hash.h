#pragma once
// Which scripts and styles a page may have: by their hashes, in its content security policy.

#include <string>
#include <string_view>

namespace fairshard::cli::report {

/// "'sha256-...'", as the policy names what stands in an element (CSP level 2).
std::string source_hash(std::string_view text);

}  // namespace fairshard::cli::report
