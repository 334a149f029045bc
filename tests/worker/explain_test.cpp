// Jobs that hang or fail on purpose: `millrace explain` names the rank at the root.
#include <chrono>
#include <thread>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Explain : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    write(
        "job.yaml",
        "model: mlp\nstages: 3\nsteps: 12\nmicrobatches: 4\nmicrobatch: 4\nthreads: 1\nno_evaluation: true\n"
        "output_dir: out\n");
  }
  /// Launches with a planted fault; it must have fired.
  Ran launch(const std::string& failpoint, const std::string& more = "") {
    Ran ran = run("launch job.yaml " + more, "MILLRACE_FAILPOINTS=" + failpoint);
    EXPECT_NE(ran.output.find("fires in step 5"), std::string::npos) << ran.output;
    return ran;
  }
  Json explained() {
    const Ran ran = run("explain out --format json");
    EXPECT_EQ(ran.code, 0) << ran.output;
    const Result<Json> json = parse_json(ran.output, "explain");
    EXPECT_TRUE(json) << ran.output;
    return json ? *json : Json::object();
  }
  static std::vector<std::int64_t> root_of(const Json& explanation) {
    std::vector<std::int64_t> root;
    if (const Json* list = explanation.find("root"))
      for (const Json& rank : list->items()) root.push_back(rank.as_int());
    return root;
  }
  static std::string why(const Json& explanation) {
    const Json* text = explanation.find("why");
    return text ? text->as_string() : "";
  }
  static bool waits(const Json& explanation, int from, int to, double seconds = 0) {
    const Json* list = explanation.find("waits");
    for (const Json& wait : list ? list->items() : Json::Array())
      if (wait.find("from")->as_int() == from && wait.find("to")->as_int() == to)
        return wait.find("seconds")->as_double() >= seconds;
    return false;
  }
};

TEST_F(Explain, AKilledRank) {
  const Ran ran = launch("backward:rank=2:step=5:action=kill");
  EXPECT_EQ(ran.code, 137) << ran.output;
  EXPECT_NE(ran.output.find("who waited for whom: millrace explain out"), std::string::npos) << ran.output;
  const Json now = explained();
  EXPECT_EQ(root_of(now), std::vector<std::int64_t>{2}) << now.dump();
  EXPECT_NE(why(now).find("signal 9"), std::string::npos) << why(now);
  EXPECT_NE(why(now).find("it was in action 2B"), std::string::npos) << why(now);
  const Result<Json> left = read_json((folder_ / "out/failure.json").string());
  ASSERT_TRUE(left);
  EXPECT_EQ(root_of(*left), root_of(now));
}

TEST_F(Explain, AnExceptionInOneRank) {
  const Ran ran = launch("update:rank=0:step=5:action=throw");
  EXPECT_EQ(ran.code, 1) << ran.output;
  const Json now = explained();
  EXPECT_EQ(root_of(now), std::vector<std::int64_t>{0}) << now.dump();
  EXPECT_NE(why(now).find("failpoint update"), std::string::npos) << why(now);
}

TEST_F(Explain, ASuspendedRank) {
  const Ran ran = launch("forward:rank=1:step=5:action=stop", "--set timeout=2");
  EXPECT_NE(ran.code, 0) << ran.output;
  const Json now = explained();
  EXPECT_EQ(root_of(now), std::vector<std::int64_t>{1}) << now.dump();
  EXPECT_NE(why(now).find("suspended"), std::string::npos) << why(now);
  EXPECT_TRUE(waits(now, 0, 1) || waits(now, 2, 1)) << now.dump();
  const Ran text = run("explain out --last 2");
  EXPECT_NE(text.output.find("at the root: rank 1 (stage 1): "), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("for rank 1: "), std::string::npos) << text.output;
}

/// A hang is explained while it lasts.
TEST_F(Explain, AHangThatLasts) {
  ASSERT_EQ(run("launch job.yaml --detach", "MILLRACE_FAILPOINTS=forward:rank=1:step=5:action=stop").code, 0);
  // A run that gets on has waits for a moment, too.
  Json now = Json::object({{"why", ""}});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const auto hangs = [&] {
    return why(now).find("suspended") != std::string::npos && waits(now, 0, 1, 0.5) && waits(now, 2, 1, 0.5);
  };
  while (!hangs() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (run("explain out").code == 0) now = explained();
  }
  run("kill out");
  EXPECT_EQ(root_of(now), std::vector<std::int64_t>{1}) << now.dump();
  EXPECT_TRUE(hangs()) << now.dump();
}

/// A disk that is full, or a rank that is killed as it starts, leaves half a record.
TEST_F(Explain, ARecordThatCannotBeReadIsLeftOut) {
  launch("backward:rank=2:step=5:action=kill");
  write("out/flight.rank1.bin", "");
  const Json now = explained();
  EXPECT_EQ(root_of(now), std::vector<std::int64_t>{2}) << now.dump();
  EXPECT_NE(now.find("unread")->dump().find("flight.rank1.bin"), std::string::npos) << now.dump();
  for (const char* rank : {"0", "2"}) write("out/flight.rank" + std::string(rank) + ".bin", "");
  EXPECT_EQ(run("explain out").code, 2) << "none is left";
}

TEST_F(Explain, AFolderWithoutRecordsIsRefused) {
  fs::create_directory(folder_ / "empty");
  const Ran ran = run("explain empty");
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.output.find("holds no record of a rank"), std::string::npos) << ran.output;
}

/// The run ends before its time is over, and can go on.
TEST_F(Explain, ATimeLimitSavesTheState) {
  const Ran ran = run("launch job.yaml --set time_limit=2s --set steps=10000000");
  EXPECT_EQ(ran.code, 75) << ran.output;
  EXPECT_NE(ran.output.find("the time limit is near"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("resume: "), std::string::npos) << ran.output;
  EXPECT_TRUE(fs::exists(folder_ / "out/checkpoints/latest"));
  // It counts from the start of the launcher, two hours ago.
  const Ran late = run("train --model mlp --width 16 --steps 200000 --output-dir late --time-limit 2h",
                       "MILLRACE_SPENT=7200");
  EXPECT_EQ(late.code, 75) << late.output;
  EXPECT_EQ(run("train --model mlp --time-limit 2h").code, 2);
  EXPECT_EQ(run("train --model mlp --output-dir x --time-limit 2w").code, 2);
}

}  // namespace
}  // namespace millrace
