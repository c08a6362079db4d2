#include <fairshard/models/config.h>

#include <cstdio>

int main() {
  const auto config = fairshard::models::ModelConfig::parse(
      R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2})");
  std::printf("%s\n", config.architecture.c_str());
}
