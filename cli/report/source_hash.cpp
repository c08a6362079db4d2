// SHA-256 (FIPS 180-4) and base64 (RFC 4648): a few lines, in place of a cryptography library for
// texts that are not secret.
#include "source_hash.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

namespace fairshard::cli::report {
namespace {

constexpr size_t kBlockBytes = 64;
constexpr size_t kRounds = 64;
using Digest = std::array<uint32_t, 8>;

/// The first 32 bits of the fractions of roots of the first primes.
template <size_t N, typename Root>
std::array<uint32_t, N> fractions(Root root) {
  std::array<uint32_t, N> result{};
  size_t found = 0;
  for (uint32_t candidate = 2; found < N; ++candidate) {
    bool is_prime = true;
    for (uint32_t divisor = 2; divisor * divisor <= candidate; ++divisor) {
      is_prime = is_prime && candidate % divisor != 0;
    }
    if (is_prime) {
      const long double value = root(static_cast<long double>(candidate));
      result[found++] = static_cast<uint32_t>((value - std::floor(value)) * 4294967296.0L);
    }
  }
  return result;
}

void add_block(Digest& digest, const unsigned char* block) {
  static const auto constants =
      fractions<kRounds>([](long double prime) { return std::cbrt(prime); });
  std::array<uint32_t, kRounds> words{};
  for (size_t i = 0; i < 16; ++i) {
    words[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 |
               uint32_t{block[4 * i + 2]} << 8 | uint32_t{block[4 * i + 3]};
  }
  for (size_t i = 16; i < kRounds; ++i) {
    const uint32_t a = words[i - 15];
    const uint32_t b = words[i - 2];
    words[i] = words[i - 16] + words[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
  }
  auto [a, b, c, d, e, f, g, h] = digest;
  for (size_t i = 0; i < kRounds; ++i) {
    const uint32_t first = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                           ((e & f) ^ (~e & g)) + constants[i] + words[i];
    const uint32_t second =
        (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const Digest mixed{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] += mixed[i];
  }
}

std::string sha256(std::string_view text) {
  Digest digest = fractions<8>([](long double prime) { return std::sqrt(prime); });
  std::string padded(text);
  padded += '\x80';
  padded.resize((padded.size() + 8 + kBlockBytes - 1) / kBlockBytes * kBlockBytes - 8, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) {
    padded += static_cast<char>(uint64_t{text.size()} * 8 >> shift);
  }
  for (size_t begin = 0; begin < padded.size(); begin += kBlockBytes) {
    add_block(digest, reinterpret_cast<const unsigned char*>(padded.data()) + begin);
  }
  std::string bytes;
  for (const uint32_t word : digest) {
    for (int shift = 24; shift >= 0; shift -= 8) {
      bytes += static_cast<char>(word >> shift);
    }
  }
  return bytes;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t triple = 0;
    for (size_t j = 0; j < 3; ++j) {
      triple = triple << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += i + j <= bytes.size() ? kLetters[triple >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

}  // namespace

std::string source_hash(std::string_view text) { return "'sha256-" + base64(sha256(text)) + "'"; }

}  // namespace fairshard::cli::report
