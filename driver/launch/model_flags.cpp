#include "driver/launch/model_flags.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>

#include "driver/hosts/program_paths.h"

extern char** environ;

namespace millrace {
namespace {

constexpr std::chrono::seconds kAnswerDeadline{60};
constexpr std::size_t kMostAnswerBytes = 4 << 20;
constexpr std::size_t kMostNamed = 4;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// "mlp: ", "all but mlp: ", or nothing where all models take it.
std::string takers_text(const Models& models, const std::vector<std::string>& takers) {
  if (takers.size() == models.size()) return "";
  std::vector<std::string> others;
  for (const ModelDescription& model : models) {
    if (std::ranges::find(takers, model.name) == takers.end()) others.push_back(model.name);
  }
  if (others.size() < takers.size() && others.size() <= kMostNamed) return "All but " + joined(others) + ": ";
  return joined(takers) + ": ";
}

/// One flag for all options of this name.
Flag flag_of(const Models& models, const std::string& name) {
  std::map<std::string, std::vector<std::string>> takers_of_text;  // what is said -> by which models
  std::vector<std::string> texts, fallbacks;
  Flag flag{.name = name, .group = "Model"};
  for (const ModelDescription& model : models) {
    const ModelOption* option = model.find(name);
    if (!option) continue;
    flag.value = option->value;
    if (std::ranges::find(fallbacks, option->fallback) == fallbacks.end())
      fallbacks.push_back(option->fallback);
    auto& takers = takers_of_text[option->help];
    if (takers.empty()) texts.push_back(option->help);
    takers.push_back(model.name);
  }
  for (const std::string& text : texts)
    flag.help += (flag.help.empty() ? "" : " ") + takers_text(models, takers_of_text[text]) + text;
  flag.target.fallback = joined(fallbacks);  // shown only: a model that is not told takes its own
  return flag;
}

/// A child whose stdout is read here; ended and collected in any case.
class Child {
 public:
  Child(const std::string& program, std::vector<std::string> words) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    out_ = ends[0];
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&files, ends[1], 1);
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    error_ = ::posix_spawn(&pid_, program.c_str(), &files, nullptr, argv.data(), environ);
    if (error_ != 0) pid_ = -1;
    ::posix_spawn_file_actions_destroy(&files);
    ::close(ends[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (out_ >= 0) ::close(out_);
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  int start_error() const { return pid_ > 0 ? 0 : error_; }

  /// Everything it prints, if it ends with exit code 0 before the deadline.
  std::optional<std::string> answer(std::chrono::steady_clock::time_point deadline) {
    std::string text;
    for (;;) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      pollfd ready{.fd = out_, .events = POLLIN, .revents = 0};
      const int found = left.count() <= 0 ? 0 : ::poll(&ready, 1, static_cast<int>(left.count()));
      if (found < 0 && errno == EINTR) continue;
      if (found <= 0) return std::nullopt;
      char buffer[1 << 14];
      const ssize_t n = ::read(out_, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 || text.size() > kMostAnswerBytes) return std::nullopt;
      if (n == 0) break;
      text.append(buffer, static_cast<std::size_t>(n));
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return std::nullopt;
    return text;
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int error_ = EMFILE;
};

}  // namespace

CommandSpec with_model_options(CommandSpec spec, const Models& models, GivenOptions& given) {
  const auto place = std::ranges::find(spec.flags, "model", &Flag::name);
  MILLRACE_CHECK(place != spec.flags.end());
  std::vector<std::string> names, options;
  for (const ModelDescription& model : models) {
    names.push_back(model.name);
    for (const ModelOption& option : model.options) {
      if (std::ranges::find(options, option.name) == options.end()) options.push_back(option.name);
    }
  }
  place->help = joined(names) + ". `millrace models` says more.";
  std::vector<Flag> flags;
  for (const std::string& name : options) {
    flags.push_back(flag_of(models, name));
    flags.back().target.read = [&given, name](const std::vector<std::string>& words) {
      given.push_back({.name = name, .text = words.back()});
      return std::optional<Problem>();  // checked against the model that is chosen
    };
  }
  spec.flags.insert(place + 1, flags.begin(), flags.end());
  return spec;
}

std::string any_worker() {
  for (const ComputeDevice device : {ComputeDevice::Cpu, ComputeDevice::Cuda}) {
    const std::string path = worker_path(device);
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

Result<Models> models_of_worker(const std::string& worker) {
  if (worker.empty())
    return Problem{worker_path(ComputeDevice::Cpu), "is missing: it is the program that knows the models",
                   worker_hint(ComputeDevice::Cpu)};
  Child child(worker, {worker, "models", "--format=json"});
  if (const int error = child.start_error(); error != 0)
    return Problem{worker, std::string("cannot be started: ") + std::strerror(error), {}};
  const auto answer = child.answer(std::chrono::steady_clock::now() + kAnswerDeadline);
  if (!answer)
    return Problem{worker, "did not list its models (`" + worker + " models`)",
                   "is it of this version? MILLRACE_WORKER or --worker names another"};
  const Result<Json> json = parse_json(*answer, worker + " models");
  if (!json) return json.problems();
  return models_from(*json);
}

}  // namespace millrace
