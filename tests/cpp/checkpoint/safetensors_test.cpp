// A module's weights to safetensors files and back; the package itself reads them in
// tests/python/checkpoint.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/training.h"
#include <fairshard/checkpoint/safetensors.h>

#include <gtest/gtest.h>

#include <fstream>

namespace fairshard {
namespace module_safetensors_test {

using test::expect_error;
using test::make_model;
using test::TemporaryDirectory;
using test::values_of;
using torch::nn::Linear;
using torch::nn::Sequential;

TEST(ModuleSafetensors, OneFileAndManyComeBackUnderOtherNames) {
  const TemporaryDirectory folder;
  auto model = make_model(1);
  const auto renamed = [](const std::string& name) { return "model.h." + name; };
  for (const int64_t most : {0, 500}) {
    const auto options = SafetensorsOptions().name_in_file(renamed).max_file_bytes(most);
    const std::string own = folder.path() + (most == 0 ? "/one" : "/many");
    ASSERT_EQ(mkdir(own.c_str(), 0700), 0);
    save_safetensors(model, own + "/model.safetensors", options);
    const std::string index = own + "/model.safetensors.index.json";
    EXPECT_EQ(access(index.c_str(), R_OK) == 0, most != 0);
    for (const std::string& path : {own, most == 0 ? own + "/model.safetensors" : index}) {
      auto other = make_model(2);
      const auto report = load_safetensors(*other, path, options);
      EXPECT_TRUE(report.missing.empty() && report.unexpected.empty());
      test::require_same(values_of(*other), values_of(*model), true);
    }
    expect_error([&] { save_safetensors(*model, own + "/model.safetensors", options); },
                 {own, "exists"});
  }
}

TEST(ModuleSafetensors, WhatDoesNotFitIsNamedAndNothingHasChanged) {
  const TemporaryDirectory folder;
  const std::string file = folder.path() + "/a.safetensors";
  save_safetensors(Sequential(Linear(2, 3), torch::nn::BatchNorm1d(3)), file);
  Sequential other(Linear(2, 3), Linear(3, 3), Linear(1, 1));
  const auto before = values_of(*other);
  expect_error([&] { load_safetensors(other, file); },
               {file, "missing: 2.weight, 2.bias", "unexpected: 1.num_batches_tracked",
                "'1.weight' has sizes [3], but [3, 3] is wanted"});
  test::require_same(values_of(*other), before, true);
  Sequential fewer(Linear(2, 3));
  const auto report = load_safetensors(fewer, file, SafetensorsOptions().strict(false));
  EXPECT_EQ(report.unexpected.size(), 5U);
  struct Counter : torch::nn::Module {
    Counter() { register_buffer("count", torch::zeros({1}, torch::kLong)); }
  };
  struct Average : torch::nn::Module {
    Average() { register_buffer("count", torch::zeros({1})); }
  };
  const std::string counted = folder.path() + "/b.safetensors";
  save_safetensors(Average(), counted);
  Counter counter;
  expect_error([&] { load_safetensors(counter, counted); }, {"'count' is Float, but Long"});
  const auto same = [](const std::string&) { return std::string("x"); };
  expect_error([&] { load_safetensors(fewer, file, SafetensorsOptions().name_in_file(same)); },
               {"'x'", "'0.bias'", "another one"});
  expect_error([&] { save_safetensors(fewer, folder.path() + "/model.bin"); },
               {"must end in .safetensors"});
  expect_error([&] { load_safetensors(fewer, folder.path()); }, {"has neither model.safetensors"});
}

TEST(ModuleSafetensors, AnIndexCannotLeadElsewhere) {
  const TemporaryDirectory folder;
  const std::string index = folder.path() + "/model.safetensors.index.json";
  Sequential model(Linear(2, 3));
  const auto load_with = [&](const std::string& text) {
    std::ofstream(index) << text;
    return [&] { load_safetensors(model, index); };
  };
  expect_error(load_with(R"({"weight_map": {"0.weight": "../a.safetensors"}})"),
               {index, "'0.weight'", "not a file beside it"});
  expect_error(load_with(R"({"weight_map": {"0.weight": "a.safetensors"}})"),
               {"a.safetensors", "No such file"});
  expect_error(load_with("{}"), {index, "weight_map"});
  save_safetensors(Sequential(Linear(1, 1)), folder.path() + "/a.safetensors");
  expect_error(load_with(R"({"weight_map": {"1.weight": "a.safetensors"}})"),
               {"a.safetensors has no tensor '1.weight'"});
}

TEST(ModuleSafetensors, DtypesAndLinksAndTiedParameters) {
  const TemporaryDirectory folder;
  const std::string file = folder.path() + "/a.safetensors";
  auto model = make_model();
  save_safetensors(model, file);
  auto narrow = make_model(3);
  narrow->to(at::kBFloat16);
  const std::string link = folder.path() + "/link";
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);  // as in the hub's cache
  load_safetensors(narrow, link);
  EXPECT_TRUE(narrow->parameters()[0].equal(model->parameters()[0].to(at::kBFloat16)));
  Linear first(4, 4);
  Linear second(4, 4);
  second->weight = second->register_parameter("other", first->weight);
  Sequential tied(first, second);
  const std::string once = folder.path() + "/tied.safetensors";
  save_safetensors(tied, once);
  const auto report = load_safetensors(tied, once);
  EXPECT_TRUE(report.missing.empty());
}

}  // namespace module_safetensors_test
}  // namespace fairshard
