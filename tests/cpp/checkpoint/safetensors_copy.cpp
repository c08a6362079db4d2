// Loads a module from files that others wrote, and writes it again, for tests from outside:
//
//   safetensors_copy FROM TO MAX_FILE_BYTES
//
// The module has the names of a C++ module; files have those of a model in Python, "model.layers.0"
// for "layers.0" and so on, and of tied parameters the second name.
#include <fairshard/checkpoint/safetensors.h>
#include <fairshard/comm/run_main.h>

#include <torch/nn.h>

#include <cstdlib>

namespace {

struct Net : torch::nn::Module {
  Net() {
    layers->push_back(torch::nn::Linear(3, 4));
    layers->push_back(torch::nn::BatchNorm1d(4));
    register_module("layers", layers);
    embedding = register_module("embedding", torch::nn::Embedding(5, 4));
    head = register_parameter("head", embedding->weight);  // tied
  }
  torch::nn::Sequential layers;
  torch::nn::Embedding embedding{nullptr};
  at::Tensor head;
};

std::string name_in_file(const std::string& name) { return name == "head" ? "" : "model." + name; }

}  // namespace

int main(int argc, char** argv) {
  return fairshard::comm::run_main([&] {
    TORCH_CHECK(argc == 4, "safetensors_copy FROM TO MAX_FILE_BYTES");
    const auto net = std::make_shared<Net>();
    const auto options = fairshard::SafetensorsOptions()
                             .name_in_file(name_in_file)
                             .max_file_bytes(std::atoll(argv[3]));
    fairshard::load_safetensors(net, argv[1], options);
    fairshard::save_safetensors(*net, argv[2], options);
  });
}
