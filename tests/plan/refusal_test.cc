// What does not fit is refused with the least that would do, and every change named has been tried.
#include <gtest/gtest.h>

#include <set>

#include "tests/plan/plan_requests.h"

namespace zinf {
namespace {

using plan::Budgets;
using plan::PlanRequest;
using plan::Tier;
using testing::kPlenty;
using testing::number_after;
using testing::Refusal;
using testing::refusal;
using testing::request_for;

// The number named is the least that fits: with it the plan exists, with a page less it does not.
TEST(Refusal, RefusalNamesTheLeastThatFits) {
  PlanRequest request = request_for(3, 1 << 17);
  request.pins.recompute = true;
  request.budgets.host = 101 * kMiB;
  auto refused = refusal(request);
  ASSERT_TRUE(refused);
  ASSERT_GT(refused->host, request.budgets.host) << refused->text;
  EXPECT_NE(refused->text.find("given 101 MiB"), std::string::npos) << refused->text;
  request.budgets.host = refused->host;
  EXPECT_LE(make_plan(request).host_bytes, refused->host);
  request.budgets.host = refused->host - 4096;
  EXPECT_TRUE(refusal(request));

  request = request_for(3, 1 << 17);
  request.pins.recompute = true;
  request.budgets.device = kMiB;
  refused = refusal(request);
  ASSERT_TRUE(refused);
  request.budgets.device = refused->device;
  EXPECT_LE(make_plan(request).device_bytes, refused->device);
  request.budgets.device = refused->device - 4096;
  EXPECT_TRUE(refusal(request));
}

// One of the changes that a refusal names, by itself.
std::vector<std::string> changes_of(const Refusal& refused) {
  std::string rest = refused.text.substr(refused.text.find("the smallest change that fits: ") + 31);
  std::vector<std::string> changes;
  for (std::size_t at; (at = rest.find(" or ")) != std::string::npos; rest = rest.substr(at + 4))
    changes.push_back(rest.substr(0, at));
  changes.push_back(rest);
  return changes;
}

// less: of the budget that the change names with this pattern, one MiB.
PlanRequest with_change(PlanRequest request, const std::string& change,
                        const std::string& less = "none") {
  const auto mib = [&](const std::string& pattern) {
    const Bytes value = number_after(change, pattern);
    return value > 0 && pattern == less ? value - 1 : value;
  };
  if (const Bytes device = mib("memory.device=(\\d+)MiB")) {
    request.budgets.device = device * kMiB;
    request.budgets.device_follows_host = false;
  }
  if (const Bytes host = mib("memory.host=(\\d+)MiB")) {
    request.budgets.host = host * kMiB;
    if (request.budgets.device_follows_host) request.budgets.device = request.budgets.host / 4;
  }
  request.budgets.nvme += mib("free (\\d+)MiB on the drives") * kMiB * 9 / 10;
  request.budgets.nvme += mib("(\\d+)MiB more memory.nvme\\[\\].capacity") * kMiB;
  request.budgets.nvme += mib("add a drive under memory.nvme, of (\\d+)MiB") * kMiB;
  if (const Bytes nvme = mib("--nvme of (\\d+)MiB")) request.budgets.nvme = nvme * kMiB;
  if (change == "--set checkpoint.slots=1") request.slots = 1;
  if (change == "--set step.recompute=true") request.pins.recompute = true;
  if (change == "--set step.group=auto") request.pins.group.reset();
  if (change == "--set placement.gradients=nvme") request.pins.gradients = Tier::kNvme;
  if (change == "--set placement=auto") {
    request.pins.weights.reset();
    request.pins.optimizer.reset();
    request.pins.gradients.reset();
    request.pins.activations.reset();
  }
  return request;
}

// Every change that a refusal names, by itself, makes the run fit; a MiB less of any budget in it
// does not.
TEST(Refusal, EveryChangeNamedFitsAndNothingLessDoes) {
  std::vector<PlanRequest> requests;
  const auto add = [&](Bytes device, Bytes host, Bytes nvme) -> PlanRequest& {
    requests.push_back(request_for(3, 1 << 20));
    requests.back().budgets.device = device;
    requests.back().budgets.host = host;
    requests.back().budgets.nvme = nvme;
    return requests.back();
  };
  add(4 * kMiB, kPlenty, kPlenty);
  add(kPlenty, 103 * kMiB, kPlenty);
  add(kMiB, 101 * kMiB, kPlenty);
  add(2 * kMiB, 130 * kMiB, 50 * kMiB);
  add(kPlenty, kPlenty, 0).pins.group = 4;
  add(kPlenty, 130 * kMiB, 0);
  add(kMiB, 130 * kMiB, 0);
  add(kPlenty, 120 * kMiB, 10 * kMiB);
  add(kPlenty, 120 * kMiB, 60 * kMiB).budgets.nvme_limit = Budgets::NvmeLimit::kCapacity;
  add(kPlenty, 120 * kMiB, 60 * kMiB).budgets.nvme_limit = Budgets::NvmeLimit::kGiven;
  add(kMiB, 102 * kMiB, kMiB);
  add(26 * kMiB, 104 * kMiB, kPlenty).budgets.device_follows_host = true;
  add(26 * kMiB, 104 * kMiB, 0).budgets.device_follows_host = true;
  add(kPlenty, 112 * kMiB, kPlenty).pins.gradients = Tier::kHost;
  add(6 * kMiB, kPlenty, kPlenty).pins.recompute = false;
  add(9 * kMiB, kPlenty, kPlenty).pins.gradients = Tier::kDevice;
  add(kPlenty, 112 * kMiB, kPlenty).pins.optimizer = Tier::kHost;
  add(5 * kMiB, kPlenty, kPlenty).pins.activations = Tier::kDevice;
  requests.back().pins.group = 4;
  add(4 * kMiB, 104 * kMiB, 100 * kMiB).gradient_type = model::DType::kBFloat16;
  int refusals = 0, named = 0;
  std::set<std::string> kinds;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto refused = refusal(requests[i]);
    EXPECT_EQ(fits(requests[i]), !refused);
    if (!refused) continue;
    ++refusals;
    SCOPED_TRACE(str("request ", i, ": ", refused->text));
    EXPECT_NE(refused->text.find(" needs "), std::string::npos);
    for (const std::string& change : changes_of(*refused)) {
      SCOPED_TRACE(change);
      ++named;
      kinds.insert(std::regex_replace(change, std::regex("\\d+"), "N"));
      EXPECT_FALSE(refusal(with_change(requests[i], change)));
      for (const char* budget :
           {"memory.device=(\\d+)MiB", "memory.host=(\\d+)MiB", "free (\\d+)MiB on the drives",
            "(\\d+)MiB more memory.nvme\\[\\].capacity",
            "add a drive under memory.nvme, of (\\d+)MiB", "--nvme of (\\d+)MiB"}) {
        if (number_after(change, budget) == 0) continue;
        EXPECT_FALSE(fits(with_change(requests[i], change, budget))) << budget;
      }
    }
  }
  EXPECT_GE(refusals, 12);
  EXPECT_GT(named, refusals);
  std::string all;
  for (const std::string& kind : kinds) all += kind + "\n";
  EXPECT_GE(kinds.size(), 9u) << all;
}

// What the hint says can be typed as it stands.
TEST(Refusal, TheHintedChangeFits) {
  for (const Bytes host : {101 * kMiB, 103 * kMiB}) {
    for (const Bytes device : {kMiB / 2, 3 * kMiB}) {
      for (const bool spill : {true, false}) {
        PlanRequest request = request_for(3, 1 << 17);
        request.pins.recompute = true;
        request.budgets.host = host;
        request.budgets.device = device;
        if (!spill) request.pins.gradients = Tier::kHost;
        const auto refused = refusal(request);
        if (!refused) continue;
        const Bytes new_host = number_after(refused->text, "--set memory.host=(\\d+)MiB");
        const Bytes new_device = number_after(refused->text, "--set memory.device=(\\d+)MiB");
        EXPECT_GT(new_host + new_device, 0u) << refused->text;
        if (new_host > 0) request.budgets.host = new_host * kMiB;
        if (new_device > 0) request.budgets.device = new_device * kMiB;
        const auto again = refusal(request);
        EXPECT_FALSE(again) << refused->text << "\nthen: " << again->text;
      }
    }
  }
}

TEST(Refusal, WithoutADriveTheHintNamesOne) {
  PlanRequest request = request_for(4, 1 << 18);
  request.budgets.nvme = 0;
  request.budgets.host = 115 * kMiB;
  const auto refused = refusal(request);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->text.find("or add a drive under memory.nvme"), std::string::npos)
      << refused->text;
  request.budgets.nvme = kPlenty;
  EXPECT_FALSE(refusal(request));
}

// A budget that the machine can't give comes last, and says so.
TEST(Refusal, WhatTheMachineDoesNotHaveIsSaid) {
  PlanRequest request = request_for(3, 1 << 20);
  request.budgets.nvme = 0;
  request.budgets.host = 130 * kMiB;
  const auto plain = refusal(request);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->text.find("another machine"), std::string::npos) << plain->text;
  EXPECT_NE(changes_of(*plain).front().find("memory.host="), std::string::npos) << plain->text;
  request.budgets.machine = 140 * kMiB;
  const auto refused = refusal(request);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->host, plain->host);
  const std::vector<std::string> changes = changes_of(*refused);
  ASSERT_EQ(changes.size(), changes_of(*plain).size());
  EXPECT_EQ(changes.back(),
            changes_of(*plain).front() + " (on another machine: this one has 140 MiB)");
  EXPECT_NE(changes.front().find("add a drive"), std::string::npos) << refused->text;
}

TEST(Refusal, TooSmallADriveIsNamed) {
  PlanRequest request = request_for(4, 1 << 18);
  request.budgets.host = 120 * kMiB;
  request.budgets.nvme = 20 * kMiB;
  const auto refused = refusal(request);
  ASSERT_TRUE(refused);
  EXPECT_NE(refused->text.find("NVMe needs"), std::string::npos) << refused->text;
  EXPECT_NE(refused->text.find("checkpoint.slots=1"), std::string::npos) << refused->text;
}

}  // namespace
}  // namespace zinf
