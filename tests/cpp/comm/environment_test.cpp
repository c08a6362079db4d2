// What launchers set, and what goes wrong with it.
#include "support/expect_error.h"
#include <fairshard/comm/environment.h>

#include <gtest/gtest.h>

#include <map>

namespace fairshard::comm {
namespace environment_test {

using Variables = std::map<std::string, std::string>;

Environment read(const Variables& variables) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

const Variables kTorchrun{{"RANK", "3"},        {"WORLD_SIZE", "4"},
                          {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "a"}, {"MASTER_PORT", "4321"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(Environment, NothingSetIsOneRank) {
  const Environment env = read({});
  EXPECT_EQ(env.origin, "none");
  EXPECT_EQ(env.world_size, 1);
  EXPECT_TRUE(env.is_one_machine());
}

TEST(Environment, Torchrun) {
  const Environment env = read(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "True"));
  EXPECT_EQ(env.origin, "torchrun");
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "a");
  EXPECT_EQ(env.master_port, 4321);
  EXPECT_TRUE(env.agent_serves_store);
  EXPECT_FALSE(env.is_one_machine());
}

TEST(Environment, TorchrunsRestartsHaveKeysOfTheirOwn) {
  EXPECT_NE(read(with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "1")).store_prefix,
            read(kTorchrun).store_prefix);
}

TEST(Environment, LaunchWinsOverWhatItWasStartedFrom) {
  const Environment env = read(with(kTorchrun, "FAIRSHARD_STORE_FILE", "/tmp/x/store"));
  EXPECT_EQ(env.origin, "launch");
  EXPECT_EQ(env.store_file, "/tmp/x/store");
}

TEST(Environment, OpenMpiOnOneMachineNeedsNoAddress) {
  const Environment env = read({{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "2"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                {"PMIX_NAMESPACE", "7"}});
  EXPECT_EQ(env.origin, "Open MPI");
  EXPECT_EQ(env.rank, 1);
  EXPECT_NE(env.store_file, "");
}

TEST(Environment, OpenMpiOnSeveralMachinesNeedsOne) {
  const Variables variables{{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  test::expect_error([&] { read(variables); }, {"MASTER_ADDR", "not set", "mpirun"});
}

TEST(Environment, SlurmFindsItsFirstHost) {
  const Variables variables{{"SLURM_PROCID", "5"},
                            {"SLURM_NTASKS", "8"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NTASKS_PER_NODE", "4"},
                            {"SLURM_JOB_ID", "100023"},
                            {"SLURM_NNODES", "2"},
                            {"SLURM_STEP_NODELIST", "n[07-08]"}};
  const Environment env = read(variables);
  EXPECT_EQ(env.origin, "Slurm");
  EXPECT_EQ(env.master_addr, "n07");
  EXPECT_EQ(env.master_port, 12000 + 100023 % 20000);
  EXPECT_EQ(env.local_world_size, 4);
  const Environment alone = read(with(variables, "SLURM_NNODES", "1"));
  EXPECT_TRUE(alone.is_one_machine());
  EXPECT_NE(alone.store_file, "");
}

TEST(Environment, SlurmNodeLists) {
  EXPECT_EQ(first_slurm_host("solo"), "solo");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("n[07-09,12],m1"), "n07");
  EXPECT_EQ(first_slurm_host("n[3,5]-ib"), "n3-ib");
  EXPECT_EQ(first_slurm_host("x1,n[3,5]"), "x1");
  test::expect_error([] { first_slurm_host("n[07"); }, {"n[07", "]"});
}

struct BadCase {
  Variables variables;
  std::vector<std::string> words;
};

class BadEnvironment : public testing::TestWithParam<BadCase> {};

TEST_P(BadEnvironment, NamesTheVariableAndItsValue) {
  test::expect_error([&] { read(GetParam().variables); }, GetParam().words);
}

INSTANTIATE_TEST_SUITE_P(
    , BadEnvironment,
    testing::Values(BadCase{with(kTorchrun, "WORLD_SIZE", "0"), {"WORLD_SIZE", "0"}},
                    BadCase{with(kTorchrun, "WORLD_SIZE", "-2"), {"WORLD_SIZE", "-2"}},
                    BadCase{with(kTorchrun, "RANK", "4"), {"RANK", "4", "0 to 3"}},
                    BadCase{with(kTorchrun, "RANK", "-1"), {"RANK", "-1"}},
                    BadCase{with(kTorchrun, "RANK", "two"), {"RANK", "'two'"}},
                    BadCase{with(kTorchrun, "RANK", "3x"), {"RANK", "'3x'"}},
                    BadCase{with(kTorchrun, "RANK", "99999999999"), {"RANK", "99999999999"}},
                    BadCase{with(kTorchrun, "RANK", ""), {"RANK", "empty"}},
                    BadCase{without(kTorchrun, "RANK"), {"RANK", "not set"}},
                    BadCase{without(kTorchrun, "WORLD_SIZE"), {"WORLD_SIZE", "not set"}},
                    BadCase{without(kTorchrun, "MASTER_ADDR"), {"MASTER_ADDR", "not set"}},
                    BadCase{without(kTorchrun, "MASTER_PORT"), {"MASTER_PORT", "not set"}},
                    BadCase{with(kTorchrun, "MASTER_PORT", "70000"), {"MASTER_PORT", "70000"}},
                    BadCase{with(kTorchrun, "LOCAL_WORLD_SIZE", "5"), {"LOCAL_WORLD_SIZE", "5"}}));

}  // namespace environment_test
}  // namespace fairshard::comm
