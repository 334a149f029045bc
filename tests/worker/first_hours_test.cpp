// What a newcomer types first: the commands of README and of `millrace --help`, flags of other tools,
// completion.
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "driver/cli/other_words.h"
#include "runtime/base/text.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

/// The commands of a page: lines between fences without a word behind them, continued ones joined, without
/// comments.
std::vector<std::string> commands_of(const std::string& page) {
  std::vector<std::string> commands;
  std::istringstream lines(page);
  bool inside = false, runs = false, goes_on = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      runs = inside && line == "```";
      continue;
    }
    if (!runs) continue;
    line = line.substr(0, line.find(" # "));
    const bool continued = line.ends_with("\\");
    if (continued) line.pop_back();
    if (goes_on)
      commands.back() += line;
    else if (!line.empty())
      commands.push_back(line);
    goes_on = continued;
  }
  return commands;
}

/// The lines under "Examples:" of a help.
std::vector<std::string> examples_of(const std::string& help) {
  std::vector<std::string> examples;
  std::istringstream lines(help.substr(help.find("\nExamples:\n") + 11));
  for (std::string line; std::getline(lines, line) && line.starts_with("  ");)
    examples.push_back(line.substr(2));
  return examples;
}

class FirstHours : public Jobs {
 protected:
  /// Runs a command of a page in the test's folder, which looks like the root of the sources.
  void expect_works(std::string command) {
    const std::string built = "build/release/bin/millrace";
    if (command.starts_with(built)) command.erase(0, built.size() - 8);
    ASSERT_TRUE(command.starts_with("millrace ") || command.starts_with("scripts/")) << command;
    if (command.starts_with("scripts/")) {  // their own tests run them whole
      const std::string script = MILLRACE_SOURCE_DIR "/" + command.substr(0, command.find(' '));
      EXPECT_EQ(std::system((script + " --help >/dev/null").c_str()), 0) << command;
      return;
    }
    const Ran ran = run(command.substr(9));
    EXPECT_EQ(ran.code, 0) << command << "\n" << ran.output;
  }
};

TEST_F(FirstHours, TheCommandsOfPagesWorkWhenPasted) {
  fs::create_directory_symlink(MILLRACE_SOURCE_DIR "/docs", folder_ / "docs");
  for (const auto& [name, least] : {std::pair("README.md", 4),
                                    {"docs/commands/evaluate.md", 2},
                                    {"docs/commands/predict.md", 3},
                                    {"docs/commands/new.md", 1}}) {
    const auto page = read_file(std::string(MILLRACE_SOURCE_DIR) + "/" + name);
    ASSERT_TRUE(page) << name;
    const std::vector<std::string> commands = commands_of(*page);
    EXPECT_GE(static_cast<int>(commands.size()), least) << name;
    for (const std::string& command : commands) expect_works(command);
  }
  for (const char* picture : {"plan.svg", "schedule.svg"}) {
    const auto shown = read_file(std::string(MILLRACE_SOURCE_DIR "/docs/pictures/branches-") + picture);
    EXPECT_TRUE(shown && *shown == bytes(picture)) << picture << " is not what README shows: draw it again";
  }
}

/// The lines between fences that have no word behind them, as a script. Other fences are of machines and
/// Python.
std::string script_of(const std::string& page) {
  std::string script = "set -euo pipefail\n";
  std::istringstream lines(page);
  bool inside = false, runs = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      runs = inside && line == "```";
    } else if (runs) {
      script += line + "\n";
    }
  }
  return script;
}

TEST_F(FirstHours, TheTaskPagesRunAsWritten) {
  const auto readme = read_file(MILLRACE_SOURCE_DIR "/README.md");
  ASSERT_TRUE(readme);
  int pages = 0;
  for (const auto& entry : fs::directory_iterator(MILLRACE_SOURCE_DIR "/docs/tasks")) {
    const std::string name = entry.path().stem().string();
    const auto page = read_file(entry.path());
    ASSERT_TRUE(page) << name;
    ++pages;
    EXPECT_LE(std::count(page->begin(), page->end(), '\n'), 60) << name;
    EXPECT_NE(readme->find("(docs/tasks/" + name + ".md)"), std::string::npos) << name;
    const std::string script = script_of(*page);
    EXPECT_GE(std::count(script.begin(), script.end(), '\n'), 4) << name;
    fs::create_directory(folder_ / name);
    fs::create_directory_symlink(MILLRACE_SOURCE_DIR "/docs", folder_ / name / "docs");
    write(name + "/page.sh", script);
    const int status =
        std::system(("cd " + (folder_ / name).string() +
                     " && PATH=" MILLRACE_BIN_DIR ":$PATH timeout 120 bash -x page.sh >log 2>&1")
                        .c_str());
    EXPECT_EQ(status, 0) << name << "\n" << bytes(name + "/log");
  }
  EXPECT_GE(pages, 6);
}

TEST_F(FirstHours, TheExamplesOfTheOverviewWorkInTheirOrder) {
  const Ran overview = run("--help");
  std::istringstream lines(overview.output);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  const std::vector<std::string> examples = examples_of(overview.output);
  EXPECT_GE(examples.size(), 5u) << overview.output;
  for (const std::string& command : examples) expect_works(command);
  EXPECT_TRUE(fs::exists(folder_ / "runs/first/report.html"));
}

TEST_F(FirstHours, HelpIsShortAndLeadsOn) {
  const Ran brief = run("train --help");
  EXPECT_LE(std::count(brief.output.begin(), brief.output.end(), '\n'), 90) << brief.output;
  EXPECT_NE(brief.output.find("--image-size PIXELS         Height and width of images"), std::string::npos)
      << brief.output;
  EXPECT_EQ(brief.output.find("--nvlamb"), std::string::npos);
  EXPECT_NE(run("help train all").output.find("--nvlamb"), std::string::npos);
  const Ran rule = run("help train update-rule");
  EXPECT_NE(rule.output.find("--nvlamb"), std::string::npos) << rule.output;
  EXPECT_EQ(rule.output.find("--image-size"), std::string::npos) << rule.output;
  EXPECT_EQ(run("train --help nonsense").code, 2);
  for (const char* command : {"evaluate", "predict", "simulate"}) {
    const std::string shown = run(std::string(command) + " --help").output;
    EXPECT_LE(std::count(shown.begin(), shown.end(), '\n'), 70) << shown;
  }
  EXPECT_EQ(run("help data text encode").output, run("data text encode --help").output);
  for (const char* group : {"data", "data text", "trace", "instrument"})
    EXPECT_NE(
        run(std::string(group) + " --help").output.find("\nExamples:\n  millrace " + std::string(group)),
        std::string::npos)
        << group;
}

TEST_F(FirstHours, BashCompletesCommandsFlagsAndValues) {
  const Ran script = run("completion bash");
  ASSERT_EQ(script.code, 0) << script.output;
  write("completion.bash", script.output);
  const auto completed = [&](const std::string& line) {
    write("ask.bash", "source completion.bash\nCOMP_WORDS=(" + line +
                          ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n" +
                          "_millrace\necho \"${COMPREPLY[@]}\" > answer\n");
    EXPECT_EQ(std::system(("cd " + folder_.string() + " && bash ask.bash").c_str()), 0) << line;
    return bytes("answer");
  };
  EXPECT_EQ(completed("millrace pro"), "profile\n");
  EXPECT_EQ(completed("millrace trace pl"), "plot\n");
  EXPECT_EQ(completed("millrace data text le"), "learn-bpe\n");
  EXPECT_EQ(completed("millrace train --model vgg"), "vgg16 vgg16_bn\n");
  EXPECT_EQ(completed("millrace train --image"), "--image-size\n");
  EXPECT_EQ(completed("millrace train --schedule v-h"), "v-half\n");
  EXPECT_EQ(completed("millrace plan --format j"), "json\n");
  EXPECT_EQ(completed("millrace plan --format = j"), "json\n") << "so bash cuts --format=j";
  EXPECT_EQ(completed("millrace plan --format ="), "text json\n");
  EXPECT_EQ(completed("millrace plan --profile ''"), "\n") << "files are the shell's own";
  EXPECT_EQ(completed("millrace launch jo"), "\n");
  EXPECT_EQ(completed("millrace completion z"), "zsh\n");
  EXPECT_EQ(completed("millrace emulate --clock v"), "virtual\n");
  EXPECT_EQ(completed("millrace help trace pl"), "plot\n");
  EXPECT_EQ(completed("millrace train --model FI"), "\n") << "FILE.pt2 is not to be typed";
  // Every word that other tools' words lead to is a flag of some command.
  for (const OtherWord& word : other_words())
    EXPECT_NE(script.output.find("--" + std::string(word.here)), std::string::npos) << word.theirs;
  // With -o zsh would offer nothing but words that begin with a dash.
  EXPECT_EQ(run("completion zsh").output.find("_describe -o"), std::string::npos);
  for (const char* shell : {"zsh", "fish"})
    EXPECT_NE(run(std::string("completion ") + shell).output.find("learn-bpe"), std::string::npos) << shell;
  EXPECT_EQ(run("completion tcsh").code, 2);
}

TEST_F(FirstHours, ManualPagesOfEveryCommand) {
  const Ran written = run("help --man man1");
  EXPECT_EQ(written.code, 0) << written.output;
  std::set<std::string> pages;
  const std::set<std::string> requests{".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".nf", ".fi"};
  for (const auto& entry : fs::directory_iterator(folder_ / "man1")) {
    pages.insert(entry.path().filename().string());
    const auto page = read_file(entry.path());
    ASSERT_TRUE(page && page->starts_with(".TH MILLRACE")) << entry.path();
    std::istringstream lines(*page);
    for (std::string line; std::getline(lines, line);)
      EXPECT_TRUE(!line.starts_with('.') || requests.contains(line.substr(0, line.find(' '))))
          << entry.path() << ": " << line;
  }
  for (const char* name : {"millrace.1", "millrace-train.1", "millrace-data-text-encode.1"})
    EXPECT_TRUE(pages.contains(name)) << name;
  EXPECT_NE(bytes("man1/millrace-train.1").find("\\-\\-image\\-size"), std::string::npos);
}

TEST_F(FirstHours, ABatchIsItsMicrobatches) {
  const std::string train = "train --model mlp --width 16 --steps 2 --microbatch 8 ";
  const auto loss = [&](const std::string& flags) {
    const Ran ran = run(train + flags);
    EXPECT_EQ(ran.code, 0) << ran.output;
    const std::size_t at = ran.output.find("final loss ");
    return at == std::string::npos ? ran.output : ran.output.substr(at, 20);
  };
  EXPECT_EQ(loss("--batch 48"), loss("--microbatches 6"));
  EXPECT_NE(loss("--batch 48"), loss("--batch 16"));
  for (const char* wrong : {"--batch 30", "--batch 48 --microbatches 6"}) {
    const Ran refused = run(train + wrong);
    EXPECT_EQ(refused.code, 2) << wrong;
    EXPECT_NE(refused.output.find("--batch: "), std::string::npos) << refused.output;
  }
}

TEST_F(FirstHours, AJobInThePlaceOfAFileAboutOneIsNamed) {
  write("job.yaml", "model: mlp\nsteps: 2\n");
  for (const char* command : {"sweep", "tune", "experiment"}) {
    const Ran refused = run(command + std::string(" job.yaml"));
    EXPECT_EQ(refused.code, 2) << refused.output;
    EXPECT_NE(refused.output.find(std::string("is a job, and `millrace ") + command), std::string::npos)
        << refused.output;
    // The hint's file is one that the command takes.
    const std::size_t at = refused.output.find("for example {") + 12;
    write("about.yaml", refused.output.substr(at));
    EXPECT_EQ(run(command + std::string(" about.yaml --dry-run")).code, 0) << refused.output;
  }
}

/// What newcomers typed in the third round: each is refused, and the hint is what they meant.
TEST_F(FirstHours, AHintIsTheNextCommand) {
  const std::string profile = "--profile " MILLRACE_SOURCE_DIR "/docs/examples/branches.json ";
  ASSERT_EQ(run("plan " + profile + "--ranks 2 --out plan.json").code, 0);
  write("hosts.yaml", "hosts:\n  - {name: a, devices: 2}\n");
  write("lists.yaml", "model: mlp\nreplicas: [2, 2]\n");
  fs::create_directories(folder_ / "pickles/cifar-10-batches-py");
  write("pickles/cifar-10-batches-py/data_batch_1", "x");
  for (const auto& [command, hint] :
       {std::pair<std::string, std::string>{"plan --pipedream " + profile + "--ranks 4", "takes --machines"},
        {"plan " + profile + "--ranks 4 --schedule 1f1b,zb-v", "simulate --sweep` compares several"},
        {"plan " + profile + "--cluster hosts.yaml", "bandwidth: 12e9"},
        {"simulate --schedule DualPipe", "here it is 'dualpipev'"},
        {"simulate --draw picture.png", "give picture.svg"},
        {"launch plan.json", "a job names its plan: {model: NAME, plan: plan.json, steps: 100}"},
        {"launch lists.yaml", "replicas: \"2,2\""},
        {"train --model mlp --replicas 2 2", "--replicas 2,2"},
        {"dlio --config job.yaml", "workload=FILE.yaml"},
        {"dlio --workload unet3d_h100", "takes workload=NAME"},
        {"dlio workload=unet3d", "shipped are unet3d_a100, unet3d_h100"},
        {"checkpoint import w.pt --out w", "stands behind the flags"},
        {"train --model mlp --steps 1 --save-weights w.pt", "give FILE.safetensors"},
        {"train --model mlp --steps 1 --save-weights w.onnx", "give FILE.safetensors"},
        {"train --model resnet18 --data pickles", "give the folder of its binary version"},
        {"train --model resnet18 --class-weights auto", "a file with a number a line, or balanced"},
        {"train --model " MILLRACE_SOURCE_DIR "/docs/examples/exported/classifier.pt2 --classes 4",
         "an exported model, whose sizes are those of its export"},
        {"train --resume .", "millrace report .` shows its command"},
        {"evaluate --model mlp --weights .", "--checkpoint-at-end"},
        {"data check .", "--check contents"}}) {
    const Ran refused = run(command);
    EXPECT_TRUE(refused.code >= 2 && refused.code <= 4) << command << "\n" << refused.output;
    EXPECT_NE(refused.output.find(hint), std::string::npos) << command << "\n" << refused.output;
    EXPECT_LE(std::count(refused.output.begin(), refused.output.end(), '\n'), 2) << refused.output;
  }
}

TEST_F(FirstHours, AModelIsDescribedByItsName) {
  EXPECT_NE(run("models mlp").output.find("--width"), std::string::npos);
  EXPECT_EQ(run("models mlp bert").code, 2);
  const Ran exported = run("models " MILLRACE_SOURCE_DIR "/docs/examples/exported/classifier.pt2");
  EXPECT_EQ(exported.code, 0) << exported.output;
  EXPECT_NE(exported.output.find("parameters in"), std::string::npos) << exported.output;
  EXPECT_EQ(run("models absent.pt2").code, 2);
}

TEST_F(FirstHours, EvaluateGivesTheNumbersOfTheTraining) {
  const std::string model = "--model mlp --width 16 --data synthetic:256 ";
  const Ran trained = run("train " + model + "--epochs 2 --output-dir out --save-weights w.safetensors");
  ASSERT_EQ(trained.code, 0) << trained.output;
  const std::string numbers = trained.evaluation();
  ASSERT_NE(numbers, "") << trained.output;
  for (const char* weights : {"--weights out", "--weights=w.safetensors", "--weights out --stages 2"}) {
    const Ran judged = run("evaluate " + model + weights);
    EXPECT_EQ(judged.code, 0) << judged.output;
    EXPECT_NE(judged.output.find(numbers), std::string::npos) << numbers << "\n" << judged.output;
  }
  EXPECT_EQ(run("evaluate --model mlp --width 32 --weights out").code, 4);
  // One job of an array is taken out first, as the hint says.
  ASSERT_EQ(
      run("train " + model + "--steps 2 --fused --lr 0.1 0.2 --output-dir two --checkpoint-at-end").code, 0);
  const Ran array = run("evaluate " + model + "--weights two");
  EXPECT_EQ(array.code, 4) << array.output;
  EXPECT_NE(array.output.find("millrace fuse two@0 --out job0"), std::string::npos) << array.output;
  ASSERT_EQ(run("fuse two@0 --out job0").code, 0);
  EXPECT_EQ(run("evaluate " + model + "--weights job0").code, 0);
  EXPECT_EQ(run("evaluate " + model).code, 2) << "without weights";
  EXPECT_EQ(run("evaluate " + model + "--weights out --lr 0.1").code, 2);
}

TEST_F(FirstHours, ADryRunOfAResumedRunComparesItsSettings) {
  const std::string train = "train --model mlp --width 16 --steps 4 ";
  ASSERT_EQ(run(train + "--output-dir out --checkpoint-at-end").code, 0);
  const Ran same = run(train + "--resume out --dry-run");
  EXPECT_EQ(same.code, 0) << same.output;
  const Ran other = run(train + "--resume out --dry-run --lr 0.5 --microbatch 4");
  EXPECT_EQ(other.code, 4) << other.output;
  EXPECT_NE(other.output.find("--resume-changes microbatch,lr"), std::string::npos) << other.output;
  EXPECT_EQ(run(train + "--resume out --dry-run --lr 0.5 --resume-changes lr").code, 0);
  EXPECT_EQ(run("train --model autoencoder --resume out --dry-run").code, 4);
}

TEST_F(FirstHours, ADryRunOfAJobAsksTheWorker) {
  const std::string profile = "plan --profile " MILLRACE_SOURCE_DIR "/docs/examples/branches.json --ranks 2 ";
  ASSERT_EQ(run(profile + "--out plan.json").code, 0);
  std::string plan = bytes("plan.json");  // of the model's name, with layers that it does not have
  plan.replace(plan.find("\"branches\""), 10, "\"mlp\"");
  write("plan.json", plan);
  write("job.yaml", "model: mlp\nplan: plan.json\n");
  const Ran refused = run("launch job.yaml --dry-run");
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(refused.output.find("the worker refuses it: plan.json: no layer of the plan is one of mlp"),
            std::string::npos)
      << refused.output;
  write("job.yaml", "model: mlp\nstages: 2\nschedule: zb-v\nchunks: 3\n");
  const Ran no_schedule = run("launch job.yaml --dry-run");
  EXPECT_EQ(no_schedule.code, 2) << no_schedule.output;
  EXPECT_NE(no_schedule.output.find("zb-v needs two stages per rank"), std::string::npos)
      << no_schedule.output;
  write("job.yaml", "model: mlp\nstages: 2\n");
  const Ran taken = run("launch job.yaml --dry-run");
  EXPECT_EQ(taken.code, 0) << taken.output;
  EXPECT_NE(taken.output.find("every rank:"), std::string::npos) << taken.output;
}

TEST_F(FirstHours, TheConsoleHasMetricLinesWhereverTheLastStageIs) {
  for (const auto& [schedule, rank] : {std::pair("1f1b", "[rank1] "), {"zb-v", "[rank0] "}}) {
    write("job.yaml",
          std::string("model: mlp\nwidth: 16\nstages: 2\nsteps: 4\noverwrite: true\nschedule: ") + schedule);
    const Ran ran = run("launch job.yaml --output-dir out");
    EXPECT_EQ(ran.code, 0) << ran.output;
    const std::size_t at = ran.output.find("step=4/4 loss=");
    ASSERT_NE(at, std::string::npos) << ran.output;
    const std::size_t line = ran.output.rfind('\n', at) + 1;
    EXPECT_EQ(ran.output.substr(line, 8), rank) << ran.output;
  }
}

TEST_F(FirstHours, AReportComparesNothingWithAPlanOfOtherMicrobatches) {
  ASSERT_EQ(run("profile --model mlp --microbatch 8 --repetitions 2 --blocks 1 --out profile.json").code, 0);
  ASSERT_EQ(run("plan --profile profile.json --ranks 2 --out plan.json").code, 0);
  for (const auto& [microbatch, compares] : {std::pair("8", true), {"4", false}}) {
    const std::string out = std::string("out") + microbatch;
    const Ran ran = run("train --model mlp --plan plan.json --steps 6 --microbatch " +
                        std::string(microbatch) + " --output-dir " + out);
    ASSERT_EQ(ran.code, 0) << ran.output;
    ASSERT_EQ(run("report --run " + out).code, 0);
    const std::string page = bytes(out + "/report.html");
    EXPECT_EQ(page.find("was predicted to take") != std::string::npos, compares);
    EXPECT_EQ(page.find("That is the median of 5 steps, of which the middle 80 % took") != std::string::npos,
              compares);
    EXPECT_EQ(
        page.find("microbatches of 8 samples, the run had 4, so nothing is compared") != std::string::npos,
        !compares);
  }
  // From which profile: a fresh one of this processor, an old one, one of another processor.
  const std::string profile = bytes("profile.json"), plan = bytes("plan.json");
  const auto date = profile.find("\"date\""), processor = profile.find("\"processor\"");
  ASSERT_NE(date, std::string::npos) << profile;
  ASSERT_NE(processor, std::string::npos) << profile;
  ASSERT_EQ(plan.find("\"profiled\"") == std::string::npos, false) << plan;
  const Ran fresh = run("report --run out8");
  EXPECT_NE(fresh.output.find("profile of less than a minute ago, on "), std::string::npos) << fresh.output;
  EXPECT_NE(bytes("out8/report.html").find("Profile of less than a minute ago, on "), std::string::npos);
  std::string old = profile;
  old.replace(old.find("20", date), 4, "2001");  // the year
  write("old.json", old);
  const Ran planned = run("plan --profile old.json --ranks 2 --out old-plan.json");
  EXPECT_NE(planned.output.find("note: the predictions are of a profile "), std::string::npos)
      << planned.output;
  const Ran trained = run("train --model mlp --plan old-plan.json --steps 2 --output-dir old");
  EXPECT_EQ(trained.code, 0) << trained.output;
  EXPECT_NE(trained.output.find("days old: profile and plan again"), std::string::npos) << trained.output;
}

TEST_F(FirstHours, ReportsShowRunsSideBySideAndInAnIndex) {
  const std::string train = "train --model mlp --width 16 --data synthetic:256 --epochs 2 --output-dir runs/";
  ASSERT_EQ(run(train + "slow --lr 0.01").code, 0);
  ASSERT_EQ(run(train + "fast --lr 0.1 --threads 2").code, 0);
  ASSERT_EQ(run("report --run runs/slow --against runs/fast runs/fast").code, 0) << "as in --against A,B";
  EXPECT_EQ(run("report runs/slow runs/fast").code, 2);
  ASSERT_EQ(run("report --run runs/slow --against runs/fast").code, 0);
  const std::string page = bytes("runs/slow/report.html");
  for (const char* part : {"Side by side: what differs", "<td>lr</td><td>0.01</td><td>0.1</td>",
                           "<td>threads</td>", "Top-1, last evaluation", "What was run", "Learning rate",
                           "<td>command</td>", "<td>processor</td>", "--lr 0.01"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  EXPECT_EQ(page.find("<td>rule</td><td>sgd</td><td>sgd</td>"), std::string::npos) << "that is the same";
  const Ran followed = run("report --run runs/slow --follow");
  EXPECT_EQ(followed.code, 0) << followed.output;
  EXPECT_EQ(bytes("runs/slow/report.html").find("http-equiv=\"refresh\""), std::string::npos)
      << "it has ended";
  ASSERT_EQ(run("report --index runs").code, 0);
  const std::string index = bytes("runs/index.html");
  for (const char* part : {"href=\"slow/report.html\"", "href=\"fast/report.html\"", "Top-1", "done"})
    EXPECT_NE(index.find(part), std::string::npos) << part;
  EXPECT_TRUE(fs::exists(folder_ / "runs/fast/report.html"));
  EXPECT_EQ(run("report --run runs/slow --index runs").code, 2);
  EXPECT_EQ(run("report").code, 2);
}

TEST_F(FirstHours, AReportOfAResumedRunShowsEachCommandAndEachCurve) {
  const std::string train =
      "train --model mlp --width 16 --evaluate-every 4 --checkpoint-every 4 --output-dir out ";
  ASSERT_EQ(run(train + "--steps 8").code, 0);
  ASSERT_EQ(run(train + "--steps 12 --resume out").code, 0);
  ASSERT_EQ(run("report --run out").code, 0);
  const std::string page = bytes("out/report.html");
  const std::size_t first = page.find("<td>command</td>"),
                    second = page.find("<td>resumed after step 8</td>");
  ASSERT_NE(first, std::string::npos);
  ASSERT_NE(second, std::string::npos);
  EXPECT_NE(page.substr(first, second - first).find("--steps 8"), std::string::npos);
  EXPECT_NE(page.substr(second, 400).find("--resume out"), std::string::npos);
  // The legend of a metric without training values says "an evaluation".
  EXPECT_NE(page.find(">Top-5<tspan"), std::string::npos);
  EXPECT_EQ(page.find(">an evaluation"), std::string::npos);
}

TEST_F(FirstHours, APointerOfGitLfsIsCalledOneWhateverReadsIt) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') + "\nsize 97800000\n";
  for (const char* name : {"w.safetensors", "w.pth", "m.pt2", "d.npz", "t.tar", "l.csv"})
    write(name, pointer);
  fs::create_directories(folder_ / "images/a");
  for (int i = 0; i < 20; ++i) write("images/a/" + std::to_string(i) + ".jpg", pointer);
  const std::string train = "train --steps 1 --no-evaluation --model ", mlp = train + "mlp ",
                    resnet = train + "resnet18 --image-size 32 --classes 2 --microbatch 2 --data ";
  const std::pair<std::string, int> commands[] = {
      {mlp + "--init-from w.safetensors", 4},
      {mlp + "--init-from w.pth", 4},
      {train + "m.pt2 --head cross-entropy", 2},
      {mlp + "--data arrays:d.npz", 3},
      {resnet + "images", 3},
      {resnet + "webdataset:t.tar", 3},
      {resnet + "csv:l.csv", 3},
  };
  for (const auto& [command, code] : commands) {
    const Ran ran = run(command);
    EXPECT_EQ(ran.code, code) << command << "\n" << ran.output;
    EXPECT_NE(ran.output.find("is a pointer of Git LFS, not the file itself"), std::string::npos)
        << command << "\n"
        << ran.output;
    EXPECT_NE(ran.output.find("`git lfs pull`"), std::string::npos) << command << "\n" << ran.output;
  }
}

TEST_F(FirstHours, ATildeIsTheHomeFolderInFlagsAndInFiles) {
  fs::create_directories(folder_ / "home");
  const std::string home = "HOME=" + (folder_ / "home").string();
  write("home/job.yaml",
        "model: mlp\nsteps: 1\nmicrobatch: 2\nno_evaluation: true\ncheckpoint_at_end: true\noutput_dir: "
        "~/out\n");
  write("cluster.yaml",
        "kinds: [{name: fast, profile: ~/p.json}]\nhosts: [{name: a, devices: 2, kind: fast, bandwidth: 1e9, "
        "latency: 1e-6}]\nnetwork: {bandwidth: 1e9, latency: 1e-5}\n");
  write("sweep.yaml", "job: ~/job.yaml\ngrid: {lr: [0.1]}\noutput_dir: ~/sweep\n");
  const std::pair<const char*, const char*> commands[] = {
      {"profile --model mlp --microbatch 2 --repetitions 1 --out='~/p.json'", "p.json"},
      {"plan --profile '~/p.json' --cluster cluster.yaml --out '~/plan.json'", "plan.json"},
      {"launch '~/job.yaml'", "out/summary.json"},
      {"launch '~/job.yaml' --set 'output_dir=~/again' --set 'init_from=~/out'", "again/summary.json"},
      {"sweep sweep.yaml", "sweep/report.html"},
      {"report '~/out'", "out/report.html"},
  };
  for (const auto& [command, file] : commands) {
    const Ran ran = run(command, home);
    EXPECT_EQ(ran.code, 0) << command << "\n" << ran.output;
    EXPECT_TRUE(fs::exists(folder_ / "home" / file)) << command << "\n" << ran.output;
  }
  EXPECT_FALSE(fs::exists(folder_ / "~"));
}

TEST_F(FirstHours, ACommandThatIsInterruptedSaysWhatItLeaves) {
  const std::string said = (folder_ / "said").string();
  const pid_t command = ::fork();
  if (command == 0) {
    if (!::freopen(said.c_str(), "w", stderr)) ::_exit(99);
    ::signal(SIGINT, SIG_DFL);  // a test that was started in the background would hand on that it is ignored
    ::alarm(120);               // ends what the interrupt does not
    // More than a minute of work.
    ::execl(MILLRACE_BIN_DIR "/millrace", "millrace", "simulate", "--sweep", "--stages", "256,512",
            "--microbatches", "4096,8192", nullptr);
    ::_exit(99);
  }
  // The interrupt comes when the command has said that it listens: SigCgt is the mask of caught signals.
  // Until the child has become that command, it has this program's handlers.
  const auto listens = [&] {
    std::ifstream lines("/proc/" + std::to_string(command) + "/status");
    bool is_command = false;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("Name:")) is_command = line.ends_with("\tmillrace");
      if (line.starts_with("SigCgt:"))
        return is_command && (std::stoull(line.substr(7), nullptr, 16) >> (SIGINT - 1) & 1) == 1;
    }
    return false;
  };
  for (int tries = 0; tries < 600 && !listens(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(command, SIGINT);
  int status = 0;
  ASSERT_EQ(::waitpid(command, &status, 0), command);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status) + 128, 130);
  EXPECT_NE(bytes("said").find("millrace simulate: stopped before its end; nothing was written"),
            std::string::npos)
      << bytes("said");
}

}  // namespace
}  // namespace millrace
