// Runs models from folders of transformers, for a test that does the same with transformers:
//
//   model_run CASE...
//
// CASE/model is the folder, and CASE/batches.safetensors has tokens and labels {steps, batch,
// length}. Written are CASE/out.safetensors with logits, loss and gradients of the first batch and
// the losses of all steps, and the folders CASE/copied, CASE/trained and CASE/random.
#include <fairshard/comm/run_main.h>
#include <fairshard/models/folder.h>
#include <fairshard/store/safetensors.h>

#include <torch/nn.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <string>
#include <vector>

namespace {

using fairshard::models::CausalModel;

class Results {
 public:
  void add(const std::string& name, const at::Tensor& value) {
    const at::Tensor copy = value.detach().clone(at::MemoryFormat::Contiguous);
    tensors_.push_back({name, copy.scalar_type(), copy.sizes().vec(), [copy] { return copy; }});
  }
  void write(const std::string& path) { fairshard::store::write_safetensors(path, tensors_); }

 private:
  std::vector<fairshard::store::TensorToWrite> tensors_;
};

std::vector<double> train(CausalModel& model, const at::Tensor& tokens, const at::Tensor& labels) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  std::vector<double> losses;
  torch::manual_seed(2);
  for (int64_t step = 0; step < tokens.size(0); ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(tokens[step], labels[step]);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

void run(const std::string& folder) {
  const fairshard::store::SafetensorsFile batches(folder + "/batches.safetensors");
  const at::Tensor tokens = batches.read("tokens"), labels = batches.read("labels");
  CausalModel model = fairshard::models::load_model(folder + "/model");
  fairshard::models::save_model(model, folder + "/copied");
  Results results;
  model->eval();
  {
    const at::NoGradGuard no_grad;
    results.add("logits", model->forward(tokens[0]));
  }
  model->train();
  model->set_loss_chunk(5);
  torch::manual_seed(1);
  const at::Tensor loss = model->loss(tokens[0], labels[0]);
  loss.backward();
  results.add("loss", loss);
  for (const auto& item : model->named_parameters()) {
    results.add("gradient." + item.key(), item.value().grad());
  }
  model->set_loss_chunk(0);
  results.add("losses", at::tensor(train(model, tokens, labels)));
  fairshard::models::save_model(model, folder + "/trained",
                                fairshard::models::SaveOptions().max_file_bytes(20000));
  torch::manual_seed(3);
  fairshard::models::save_model(fairshard::models::make_model(model->config()), folder + "/random");
  results.write(folder + "/out.safetensors");
}

}  // namespace

int main(int argc, char** argv) {
  return fairshard::comm::run_main([&] {
    for (int i = 1; i < argc; ++i) {
      run(argv[i]);
    }
  });
}
