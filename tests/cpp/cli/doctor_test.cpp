// What the doctor makes of measurements, case by case; and the limits of cgroups.
#include "doctor/cgroup.h"
#include "doctor/disk.h"
#include "doctor/examination.h"
#include "doctor/findings.h"
#include "doctor/json.h"
#include "doctor/tables.h"
#include "doctor/words.h"
#include "support/temporary_directory.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace fairshard::cli::doctor {
namespace doctor_test {

using comm::Link;

constexpr double kGbit = 1e9 / 8;
constexpr int64_t kGiB = int64_t{1} << 30;

std::string address_of(int rank) { return "10.0.0." + std::to_string(rank + 1); }

Machine good_machine(int rank) {
  Machine machine;
  machine.rank = rank;
  machine.origin = "torchrun";
  machine.machine_id = "machine " + std::to_string(rank);
  auto& network = machine.network;
  network.host = "node" + std::to_string(rank);
  network.host_addresses = {address_of(rank)};
  network.interfaces = {{"lo", "127.0.0.1", true, true, -1, 65536},
                        {"eth0", address_of(rank), false, true, 1000, 1500},
                        {"docker0", "172.17.0.1", false, true, -1, 1500}};
  network.address = address_of(rank);
  network.interface = "eth0";
  network.chosen_by = "host name";
  network.master = "10.0.0.1";
  network.address_to_master = address_of(rank);
  machine.cores = {{0, 1, 2, 3}, -1, "4", 4};
  machine.memory = {64 * kGiB, 60 * kGiB, -1, 32 * kGiB, 32 * kGiB, -1, 1024 * 1024, false};
  machine.disk = {"runs", "", 100 * kGiB, 64 << 20, 500e6, false};
  machine.gpus = {{"H200", "0000:1a:00.0", {1}}, {"H200", "0000:1b:00.0", {0}}};
  machine.versions = {"0.1.0", "2.11.0", "g++ 13", "6.1", "3.11"};
  return machine;
}

/// Every rank on a machine of its own, and nothing to be said against any.
Measurements good(int ranks) {
  Measurements all;
  all.ranks = ranks;
  for (int from = 0; from < ranks; ++from) {
    all.machines.push_back(good_machine(from));
    for (int to = 0; to < ranks; ++to) {
      if (to != from) {
        all.links.push_back({from, to, address_of(to) + ":4000", "", 1e-3, 1e-4, 0.94 * kGbit,
                             0.94 * kGbit / (ranks - 1), 0, 1e-4});
      }
    }
  }
  return all;
}

Link& link(Measurements& all, int from, int to) {
  return *std::ranges::find_if(
      all.links, [&](const Link& each) { return each.from == from && each.to == to; });
}

void cut(Measurements& all, int from, int to, const std::string& fault = "") {
  Link& there = link(all, from, to);
  there = {from, to, there.address, fault};
  if (fault.empty()) {
    there.fault = c10::str("no answer within 5 s from rank ", from, " to rank ", to);
  }
}

/// To 10 Mbit/s, all links with this rank at this end.
void slow_down(Measurements& all, int Link::*end, int rank) {
  for (auto& each : all.links) {
    each.bytes_per_s = each.*end == rank ? 1e7 / 8 : each.bytes_per_s;
  }
}

/// Ranks 0 and 1 on one machine, the others on another.
Measurements two_machines() {
  auto all = good(4);
  for (auto& machine : all.machines) {
    machine.machine_id = machine.rank < 2 ? "a" : "b";
    machine.cores.threads = 2;
  }
  return all;
}

struct Case {
  const char* name;
  int ranks;
  std::function<void(Measurements&)> spoil;
  Severity severity;
  const char* topic;
  std::vector<int> on;
  /// Parts of what was seen and what to change.
  std::vector<std::string> words;
};

void PrintTo(const Case& tried, std::ostream* out) { *out << tried.name; }

constexpr auto kFails = Severity::kFails;
constexpr auto kHurts = Severity::kHurts;
constexpr auto kNote = Severity::kNote;

/// Each spoils one thing, and must give just the one finding.
const std::vector<Case> kCases = {
    {"OneDirectionIsSlow",
     4,
     [](auto& all) { link(all, 2, 0).bytes_per_s = 9.8e6 / 8; },
     kHurts,
     "links",
     {2, 0},
     {"rank 2 -> rank 0 is 9.8 Mbit/s, the other pairs 940 Mbit/s", "ethtool"}},
    {"OneOfTwoDirectionsIsSlow",
     2,
     [](auto& all) { link(all, 1, 0).bytes_per_s = kGbit / 10; },
     kHurts,
     "links",
     {1, 0},
     {"rank 1 -> rank 0 is 100 Mbit/s, the other pairs 940 Mbit/s"}},
    {"ARankSendsSlowly",
     4,
     [](auto& all) { slow_down(all, &Link::from, 2); },
     kHurts,
     "links",
     {2},
     {"rank 2 -> every other rank is 10 Mbit/s, the other pairs 940 Mbit/s"}},
    {"ARankReceivesSlowly",
     4,
     [](auto& all) { slow_down(all, &Link::to, 2); },
     kHurts,
     "links",
     {2},
     {"rank 2 <- every other rank is 10 Mbit/s"}},
    {"ALinkIsLong",
     3,
     [](auto& all) { link(all, 0, 1).latency_s = 0.04; },
     kHurts,
     "links",
     {0, 1},
     {"rank 0 -> rank 1 takes 40 ms, the other pairs 100 us", "traceroute"}},
    {"TheSwitchIsNarrow",
     2,
     [](auto& all) {
       for (auto& each : all.links) {
         each.together_bytes_per_s = 0.2 * kGbit;
       }
     },
     kHurts,
     "links",
     {0, 1},
     {"all at once: 200 Mbit/s leave this machine, and 940 Mbit/s by one link alone", "SlowMo"}},
    {"APairIsCut",
     4,
     [](auto& all) {
       cut(all, 1, 2);
       cut(all, 2, 1);
     },
     kFails,
     "links",
     {1, 2},
     {"ranks 1 and 2 could not connect: no answer within 5 s from rank 1 to rank 2; no answer "
      "within 5 s from rank 2 to rank 1; rank 1 is at 10.0.0.2 on eth0, rank 2 is at 10.0.0.3 on "
      "eth0",
      "firewall"}},
    {"ADirectionIsLost",
     2,
     [](auto& all) {
       cut(all, 0, 1);
       cut(all, 1, 0);
       all.machines[1].unheard_by = {"10.0.0.1"};
     },
     kFails,
     "links",
     {0, 1},
     {"rank 1 has got the call of rank 0, so it is what rank 1 sends to rank 0 that is lost"}},
    {"CallsOfOneDirectionAreRefused",
     3,
     [](auto& all) { cut(all, 1, 2, "from rank 1 to rank 2: Connection refused"); },
     kFails,
     "links",
     {1, 2},
     {"rank 1 could not connect to rank 2: from rank 1 to rank 2: Connection refused"}},
    {"ARankIsCutOff",
     4,
     [](auto& all) {
       for (const int other : {0, 1, 2}) {
         cut(all, 3, other);
         cut(all, other, 3);
       }
     },
     kFails,
     "links",
     {3},
     {"rank 3 could not connect to any other", "10.0.0.4 on eth0"}},
    {"LongPacketsAreLost",
     2,
     [](auto& all) {
       auto& there = link(all, 0, 1);
       there.fault = "no answer within 5 s from rank 0 to rank 1, though it had answered before";
       there.bytes_per_s = 0;
     },
     kFails,
     "links",
     {0, 1},
     {"though it had answered before", "MTU"}},
    {"ARankHasEnded",
     3,
     [](auto& all) {
       all.machines.erase(all.machines.begin() + 1);
       cut(all, 0, 1, "rank 1 is not there");
       cut(all, 2, 1, "rank 1 is not there");
       std::erase_if(all.links, [](const Link& each) { return each.from == 1; });
     },
     kFails,
     "ranks",
     {1},
     {"has not answered", "look at what it has written"}},
    {"ALinkWasLeftOut",
     2,
     [](auto& all) {
       cut(all, 0, 1, "not measured: the links before it took too long");
       link(all, 0, 1).connect_s = 1e-3;
     },
     kNote,
     "links",
     {0, 1},
     {"rank 0 -> rank 1: not measured", "--answer-s"}},
    {"AClockIsAhead",
     2,
     [](auto& all) { link(all, 0, 1).clock_offset_s = 3; },
     kNote,
     "clocks",
     {1},
     {"3.0 s ahead of that of rank 0", "chrony"}},
    {"AnInterfaceIsNotThere",
     2,
     [](auto& all) {
       auto& network = all.machines[1].network;
       network.fault = "GLOO_SOCKET_IFNAME is eth9, which has no address here; there are lo, eth0";
       network.address = "";
       cut(all, 0, 1, "rank 1 does not listen");
     },
     kFails,
     "network",
     {1},
     {"eth9", "set GLOO_SOCKET_IFNAME=eth0"}},
    {"TheNameIsOfTheLoopback",
     2,
     [](auto& all) {
       auto& network = all.machines[1].network;
       network.address = "127.0.1.1";
       network.interface = "lo";
       cut(all, 0, 1, "from rank 0 to rank 1: Connection refused");
     },
     kFails,
     "network",
     {1},
     {"the host name node1 has the address 127.0.1.1 of the loopback interface",
      "set GLOO_SOCKET_IFNAME=eth0, or give the name the machine's own address (/etc/hosts, DNS)"}},
    {"TheNameIsNobodyS",
     2,
     [](auto& all) {
       auto& network = all.machines[1].network;
       network.address = "127.0.0.1";
       network.interface = "lo";
       network.chosen_by = "nothing";
       network.host_fault = "Name or service not known";
       network.address_to_master = "";
       cut(all, 0, 1, "from rank 0 to rank 1: Connection refused");
     },
     kFails,
     "network",
     {1},
     {"the host name node1 has no address of this machine (Name or service not known)",
      "to the interface that leads to the other machines"}},
    {"AnotherInterfaceLeadsThere",
     3,
     [](auto& all) {
       auto& network = all.machines[1].network;
       network.address = "172.17.0.1";
       network.interface = "docker0";
       network.chosen_by = "GLOO_SOCKET_IFNAME";
       cut(all, 0, 1);
       cut(all, 2, 1, "from rank 2 to rank 1: another program answers at 172.17.0.1:4000");
     },
     kFails,
     "network",
     {1},
     {"listens at 172.17.0.1 on docker0 (by GLOO_SOCKET_IFNAME), where other ranks do not reach "
      "it; "
      "to MASTER_ADDR 10.0.0.1 it sends through eth0",
      "set GLOO_SOCKET_IFNAME=eth0"}},
    {"TwoInterfacesLeadThere",
     2,
     [](auto& all) {
       all.machines[1].network.interfaces.push_back({"eth1", "10.1.0.2", false, true, 1000, 1500});
       all.machines[1].network.address = "10.1.0.2";
       all.machines[1].network.interface = "eth1";
     },
     kNote,
     "network",
     {1},
     {"on eth1 (by host name), where others reach it", "through eth0"}},
    {"AnInterfaceIsQuicker",
     2,
     [](auto& all) {
       all.machines[0].network.interfaces.push_back({"ib0", "10.1.0.1", false, true, 100000, 1500});
     },
     kNote,
     "network",
     {0},
     {"listens on eth0 (1000 Mbit/s); ib0 has 100000 Mbit/s"}},
    {"TheResolverIsSlow",
     2,
     [](auto& all) { all.machines[1].network.resolve_s = 5; },
     kHurts,
     "network",
     {1},
     {"node1 took 5.0 s to resolve", "/etc/hosts"}},
    {"MtusDiffer",
     2,
     [](auto& all) { all.machines[1].network.interfaces[1].mtu = 9000; },
     kNote,
     "network",
     {0, 1},
     {"MTUs of 1500, 9000"}},
    {"MoreThreadsThanCores",
     1,
     [](auto& all) {
       all.machines[0].cores.threads = 8;
       all.machines[0].cores.omp_num_threads = "";
     },
     kHurts,
     "cores",
     {0},
     {"1 rank(s) on this machine have 8 threads in all (OMP_NUM_THREADS is not "
      "set) on 4 cores",
      "set OMP_NUM_THREADS=4"}},
    {"ACgroupGivesLess",
     1,
     [](auto& all) { all.machines[0].cores.quota = 1.5; },
     kHurts,
     "cores",
     {0},
     {"4 threads in all (OMP_NUM_THREADS is 4) on 1.5 cores, which is what the cgroup gives",
      "set OMP_NUM_THREADS=1"}},
    {"MemoryIsShort",
     1,
     [](auto& all) { all.machines[0].memory.cgroup_limit = kGiB / 2; },
     kHurts,
     "memory",
     {0},
     {"each rank has 512.0 MiB of memory left"}},
    {"SharedMemoryIsDockerS",
     1,
     [](auto& all) {
       all.machines[0].memory.shared_total = all.machines[0].memory.shared_free = 64 << 20;
     },
     kHurts,
     "memory",
     {0},
     {"/dev/shm has 64.0 MiB free of 64.0 MiB", "--shm-size"}},
    {"InfiniBandLocksMemory",
     1,
     [](auto& all) {
       all.machines[0].memory.has_infiniband = true;
       all.machines[0].memory.locked_limit = 8 << 20;
     },
     kHurts,
     "limits",
     {0},
     {"8.0 MiB of memory may be locked", "ulimit -l unlimited"}},
    {"FewFilesMayBeOpen",
     1,
     [](auto& all) { all.machines[0].memory.open_files = 64; },
     kFails,
     "limits",
     {0},
     {"64 files", "ulimit -n"}},
    {"TheDiskIsFull",
     1,
     [](auto& all) { all.machines[0].disk.free = 10 << 20; },
     kHurts,
     "disk",
     {0},
     {"--save runs: 10.0 MiB free"}},
    {"TheDiskIsSlow",
     1,
     [](auto& all) { all.machines[0].disk.bytes_per_s = 5e6; },
     kHurts,
     "disk",
     {0},
     {"writes 5.0 MB/s with fsync: a checkpoint of 1 GB takes 200 s"}},
    {"TheDiskIsMemory",
     1,
     [](auto& all) { all.machines[0].disk.is_in_memory = true; },
     kHurts,
     "disk",
     {0},
     {"lost with the machine"}},
    {"TheDiskRefuses",
     1,
     [](auto& all) {
       all.machines[0].disk.fault = "no file can be made there: Read-only file system";
     },
     kFails,
     "disk",
     {0},
     {"Read-only"}},
    {"AMachineLacksAGpu",
     2,
     [](auto& all) { all.machines[1].gpus = {{"H200", "0000:1a:00.0", {}}}; },
     kHurts,
     "gpus",
     {1},
     {"sees 1 GPU(s), and rank 0 sees 2"}},
    {"GpusDoNotReachEachOther",
     1,
     [](auto& all) { all.machines[0].gpus[1].peers.clear(); },
     kNote,
     "gpus",
     {0},
     {"not all GPUs reach each other's memory"}},
    {"AnotherTorch",
     3,
     [](auto& all) { all.machines[2].versions.torch = "2.15.0"; },
     kFails,
     "versions",
     {2},
     {"torch is 2.15.0, and 2.11.0 on rank 0"}},
    {"TwoOtherKernels",
     3,
     [](auto& all) { all.machines[1].versions.kernel = all.machines[2].versions.kernel = "5.4"; },
     kNote,
     "versions",
     {1, 2},
     {"the kernel is 5.4, and 6.1 on rank 0"}},
};

class OneFinding : public testing::TestWithParam<Case> {};

TEST_P(OneFinding, IsAllThatIsFound) {
  const Case& tried = GetParam();
  auto all = good(tried.ranks);
  tried.spoil(all);
  const auto findings = find_all(all);
  std::ostringstream report;
  print_report(all, findings, report);
  ASSERT_EQ(findings.size(), 1u) << report.str();
  EXPECT_EQ(name_of(findings[0].severity), std::string(name_of(tried.severity)));
  EXPECT_EQ(findings[0].topic, tried.topic);
  EXPECT_EQ(findings[0].ranks, tried.on);
  EXPECT_EQ(is_fine(findings), tried.severity == kNote);
  for (const auto& word : tried.words) {
    EXPECT_NE((findings[0].seen + "\n" + findings[0].change).find(word), std::string::npos)
        << word << "\n"
        << report.str();
  }
  EXPECT_NE(report.str().find(findings[0].seen), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Cases, OneFinding, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(DoctorFindings, NothingIsWrongWithGoodMachines) {
  for (const int ranks : {1, 2, 4, 20}) {
    EXPECT_TRUE(find_all(good(ranks)).empty()) << ranks;
  }
  EXPECT_TRUE(find_all(two_machines()).empty());
}

TEST(DoctorFindings, LinksWithinAMachineAreNotCompared) {
  auto all = two_machines();
  link(all, 0, 1).bytes_per_s = 1;
  link(all, 2, 3).latency_s = 1;
  EXPECT_TRUE(find_all(all).empty());
}

TEST(DoctorFindings, WhatWasTooShortToMeasureIsNotSlow) {
  auto all = good(3);
  link(all, 0, 1).bytes_per_s = 0;
  for (auto& each : all.links) {
    each.together_bytes_per_s = 0;
  }
  EXPECT_TRUE(find_all(all).empty());
}

TEST(DoctorFindings, RanksOfAMachineShareItsCores) {
  auto all = two_machines();
  all.machines[2].cores.threads = all.machines[3].cores.threads = 4;
  const auto findings = find_all(all);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].ranks, (std::vector<int>{2, 3}));
  EXPECT_NE(findings[0].seen.find("2 rank(s) on this machine have 8 threads"), std::string::npos);
  EXPECT_EQ(findings[0].change, "set OMP_NUM_THREADS=2");
}

TEST(DoctorFindings, ARankMayBeBoundToFewerCores) {
  auto all = two_machines();
  all.machines[0].cores.allowed = {0};
  all.machines[1].cores.allowed = {1, 2, 3};
  const auto findings = find_all(all);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].ranks, std::vector<int>{0});
  EXPECT_EQ(findings[0].seen, "is bound to 1 core of 4 and has 2 threads");
}

TEST(DoctorFindings, AllRanksOnOneMachineMayUseTheLoopback) {
  auto all = good(2);
  for (auto& machine : all.machines) {
    machine.machine_id = "one";
    machine.cores.threads = 2;
    machine.network.address = "127.0.0.1";
    machine.network.interface = "lo";
  }
  EXPECT_TRUE(find_all(all).empty());
}

TEST(DoctorFindings, AreOrderedByWhatTheyDo) {
  auto all = good(3);
  all.machines[0].versions.kernel = "5.4";
  link(all, 2, 0).bytes_per_s = 1;
  cut(all, 0, 1);
  const auto findings = find_all(all);
  ASSERT_EQ(findings.size(), 3u);
  EXPECT_EQ(findings[0].severity, kFails);
  EXPECT_EQ(findings[1].severity, kHurts);
  EXPECT_EQ(findings[2].severity, kNote);
}

TEST(DoctorJson, GoesFromRankToRank) {
  const auto all = good(2);
  const Machine machine = machine_from(to_text(all.machines[1]));
  EXPECT_EQ(to_text(machine), to_text(all.machines[1]));
  EXPECT_EQ(machine.network.interfaces[1].name, "eth0");
  EXPECT_EQ(machine.gpus[0].peers, std::vector<int>{1});
  const auto links = links_from(to_text(all.links));
  EXPECT_EQ(to_text(links), to_text(all.links));
  EXPECT_EQ(links[1].from, 1);
  EXPECT_EQ(links[1].bytes_per_s, all.links[1].bytes_per_s);
}

TEST(DoctorTables, ManyRanksGiveTheSlowestLinks) {
  auto all = good(20);
  link(all, 7, 13).bytes_per_s = 1e6;
  std::ostringstream out;
  print_report(all, find_all(all), out);
  EXPECT_NE(out.str().find("links: the slowest of 380\nfrom  to"), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("\n7     13"), std::string::npos) << out.str();
}

TEST(DoctorWords, HaveUnits) {
  EXPECT_EQ(readable_rate(9.8e6 / 8), "9.8 Mbit/s");
  EXPECT_EQ(readable_rate(11e9 / 8), "11 Gbit/s");
  EXPECT_EQ(readable_rate(56e3 / 8), "56 kbit/s");
  EXPECT_EQ(readable_delay(4.5e-5), "45 us");
  EXPECT_EQ(readable_delay(0.04), "40 ms");
  EXPECT_EQ(ranks_text({2}), "rank 2");
  EXPECT_EQ(ranks_text({0, 1, 3}), "ranks 0, 1, 3");
  EXPECT_EQ(ranks_text({0, 1, 2, 5}), "ranks 0-2, 5");
  EXPECT_EQ(ranges({0, 1, 3, 8, 9}), "0-1,3,8-9");
}

TEST(DoctorTables, RanksThatAreAlikeShareARow) {
  auto all = good(4);
  all.machines[2].versions.kernel = "5.4";
  std::ostringstream out;
  print_report(all, {}, out);
  EXPECT_NE(out.str().find("\n0-1,3  0.1.0      2.11.0"), std::string::npos) << out.str();
}

/// Rank 1 has met rank 0, and is not heard of again.
TEST(Examination, GoesOnWithoutARankThatHasEnded) {
  comm::Environment environment;
  environment.world_size = environment.local_world_size = 2;
  DoctorOptions options;
  options.timeout_s = options.answer_s = 0.3;
  Measurements found;
  const int status = examine(c10::make_intrusive<c10d::HashStore>(), environment, options,
                             [&](const Measurements& measurements) {
                               found = measurements;
                               return 7;
                             });
  EXPECT_EQ(status, 7);
  ASSERT_EQ(found.machines.size(), 1u);
  ASSERT_EQ(found.links.size(), 1u);
  EXPECT_EQ(found.links[0].fault, "rank 1 is not there");
  const auto findings = find_all(found);
  EXPECT_EQ(findings.front().topic, "ranks");
  EXPECT_EQ(findings.front().ranks, std::vector<int>{1});
  EXPECT_TRUE(
      std::ranges::none_of(findings, [](const auto& each) { return each.topic == "links"; }));
}

TEST(ExamineDisk, MakesNoFolderAndLeavesNoFile) {
  const test::TemporaryDirectory folder;
  const Disk disk = examine_disk(folder.path() + "/runs/a", true, 10);
  EXPECT_EQ(disk.fault, "");
  EXPECT_GT(disk.written, 0);
  EXPECT_GT(disk.bytes_per_s, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(examine_disk(folder.path(), false, 10).written, 0);
}

TEST(ExamineDisk, SaysWhatIsWrong) {
  EXPECT_NE(examine_disk("/proc/self/status", true, 10).fault.find("is no folder"),
            std::string::npos);
  // Nothing can be made there, whoever asks.
  EXPECT_NE(examine_disk("/proc/self", true, 10).fault, "");
}

/// Writes a file with its folders.
void write(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(CgroupLimits, AreTheNarrowestOnTheWayUp) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path root = folder.path();
  write(root / "own", "0::/job/rank\n");
  write(root / "job/rank/cpu.max", "max 100000\n");
  write(root / "job/cpu.max", "150000 100000\n");
  write(root / "cpu.max", "400000 100000\n");
  write(root / "job/rank/memory.max", "2147483648\n");
  write(root / "job/memory.max", "max\n");
  const auto limits = read_cgroup_limits(root / "own", root);
  EXPECT_DOUBLE_EQ(limits.cores, 1.5);
  EXPECT_EQ(limits.memory, 2 * kGiB);
}

TEST(CgroupLimits, OfTheFirstVersion) {
  const test::TemporaryDirectory folder;
  const std::filesystem::path root = folder.path();
  write(root / "own", "4:cpu,cpuacct:/job\n9:memory:/job\n1:name=systemd:/job\n");
  write(root / "cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  write(root / "cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  write(root / "cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  write(root / "cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write(root / "memory/job/memory.limit_in_bytes", "1073741824\n");
  write(root / "memory/memory.limit_in_bytes", "9223372036854771712\n");
  const auto limits = read_cgroup_limits(root / "own", root);
  EXPECT_DOUBLE_EQ(limits.cores, 0.5);
  EXPECT_EQ(limits.memory, kGiB);
}

TEST(CgroupLimits, NoneWhereThereAreNone) {
  const auto limits = read_cgroup_limits("/nonexistent", "/nonexistent");
  EXPECT_EQ(limits.cores, -1);
  EXPECT_EQ(limits.memory, -1);
}

}  // namespace doctor_test
}  // namespace fairshard::cli::doctor
