#include "driver/launch/job_spec.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>

#include "driver/cli/home_path.h"
#include "driver/cli/other_words.h"
#include "driver/flags/compute_specs.h"
#include "driver/flags/job_lists.h"
#include "driver/hosts/rank_process.h"
#include "driver/launch/pipedream_job.h"
#include "driver/queues/engine.h"
#include "runtime/base/files.h"
#include "runtime/base/flag.h"
#include "runtime/base/text.h"
#include "runtime/plan/limits.h"
#include "runtime/plan/replicas.h"
#include "runtime/plan/smaller_plans.h"
#include "runtime/schedule/csv.h"

namespace millrace {
namespace {

constexpr double kLeastHeartbeat = 2;  ///< seconds; ranks beat every second

// The launcher sets these for every rank; a job that set them too would contradict it.
constexpr const char* kLauncherVariables[] = {
    "RANK",           "LOCAL_RANK",          "WORLD_SIZE",     "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",    "MASTER_PORT",         "MILLRACE_STORE", "MILLRACE_LAUNCHER_PID",
    "MILLRACE_TOKEN", "MILLRACE_TOKEN_FILE", "MILLRACE_RUN",   "MILLRACE_FOLDERS",
    "MILLRACE_HOST",  "MILLRACE_TERMINAL",   kOrders,          kSpent};
// Keys of a job that are no flags of `train`, in the order of messages.
constexpr const char* kJobKeys[] = {"name",          "ranks",           "worker",       "env",
                                    "args",          "hosts",           "on",           "workdir",
                                    "client",        "remote-millrace", "container",    "container-runtime",
                                    "mounts",        "requeue",         "max-restarts", "spare-hosts",
                                    "smaller-plans", "heartbeat"};

std::string with_dashes(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

std::optional<Problem> problem_of_value(const Flag& flag, const std::string& text) {
  if (flag.value.empty()) {
    if (text != "true" && text != "false")
      return Problem{"", "'" + text + "' is not true or false", "write true, or leave the key out"};
    return std::nullopt;
  }
  const std::string advice = "write " + flag.value + ", or leave the key out";
  if (text.empty()) return Problem{"", "is empty", advice};
  std::optional<Problem> problem = read_value(flag, {text});
  if (problem && problem->hint.empty()) problem->hint = advice;
  return problem;
}

/// Builds a JobSpec from members that come one by one: first the file's, then those of --set.
class JobReader {
 public:
  JobReader(std::string source, Problems& problems, const AskForModels& ask, std::string worker)
      : source_(std::move(source)),
        problems_(problems),
        ask_(ask),
        flags_(train_spec(flag_values_).flags),
        worker_(std::move(worker)) {}
  JobReader(const JobReader&) = delete;  // the flags point into it

  void read(const Json& json) {
    if (!json.is_object()) {
      problems_.push_back({place(json), "a job is a mapping of keys to values", "e.g. model: mlp"});
      return;
    }
    for (const auto& [key, value] : json.members()) member(key, value);
  }

  /// These values win over those that are there. Steps take the place of epochs.
  void override_with(const std::vector<JobOverride>& overrides) {
    overriding_ = true;
    const auto is_of = [](const char* key) { return [key](const JobOverride& o) { return o.key == key; }; };
    if (std::ranges::any_of(overrides, is_of("steps")) && std::ranges::none_of(overrides, is_of("epochs")))
      std::erase_if(values_, [](const Value& v) { return v.flag == "epochs"; });
    for (const auto& [key, text, where] : overrides) {
      Json value(text);
      value.set_where(where.empty() ? "--set " + key : where);
      if (key.rfind("env.", 0) == 0) {
        variable(key.substr(4), value);
      } else if (key.rfind("args.", 0) == 0) {
        flag(key.substr(5), value);
      } else if (const Engine* engine = engine_with_section(key.substr(0, key.find('.')));
                 engine && key.find('.') != std::string::npos) {
        option(*engine, key.substr(key.find('.') + 1), value);
      } else {
        member(key, value);
      }
    }
  }

  JobSpec finish() {
    JobSpec job{.name = name_, .source = source_, .worker = worker_};
    if (job.name.empty()) job.name = std::filesystem::path(source_).stem().string();
    if (job.name.empty() || job.name == "." || job.name == "..") job.name = "job";
    for (const Flag& flag : flags_) {
      const auto found =
          std::find_if(values_.begin(), values_.end(), [&](const Value& v) { return v.flag == flag.name; });
      if (found != values_.end() && !(flag.value.empty() && found->text == "false")) {
        job.train.emplace_back(flag.name, found->text);
      }
    }
    job.environment = environment_;
    place_ranks(job);
    place_hosts(job);
    if (takes_plans_beside()) find_smaller_plans(job);
    job.restarts = restarts_;
    job.heartbeat_s = heartbeat_s_;
    // A job that comes back from the queue goes on where it was.
    if (hosts_.requeue && !job.find("resume")) job.train.emplace_back("resume", kResumeAuto);
    const std::string* folder = job.find("output-dir");
    job.output_dir = folder ? *folder : "runs/" + job.name;
    if (!folder) job.train.emplace_back("output-dir", job.output_dir);
    add_model_options(job);
    take_lists(job);
    sort_by_help(job);
    return job;
  }

 private:
  /// Keys that are no flags of `train`: what the model describes, in its order; others are unknown.
  void add_model_options(JobSpec& job) {
    if (others_.empty()) return;
    const Result<Models> models = ask_ ? ask_(worker_) : Result<Models>(Models{});
    if (!models) {
      append(problems_, models.problems());
      return;
    }
    if (models->empty()) {
      for (const Value& other : others_) job.train.emplace_back(other.flag, other.text);
      return;
    }
    GivenOptions given;
    for (const Value& other : others_) {
      const bool known = std::ranges::any_of(*models, [&](const auto& m) { return m.find(other.flag); });
      if (known) {
        given.push_back({other.flag, other.text, other.where});
      } else {
        unknown(other, *models);
      }
    }
    const std::string* name = job.find("model");
    if (!name) return;  // which is said elsewhere
    const Result<ModelDescription> model = find_model(*models, *name);
    if (!model) {
      for (Problem problem : model.problems()) {
        problem.where = source_;
        problems_.push_back(std::move(problem));
      }
      return;
    }
    if (const Result<ModelOptions> options = options_for(*model, given); !options)
      append(problems_, options.problems());
    for (const ModelOption& option : model->options) {
      const auto found = std::ranges::find(others_, option.name, &Value::flag);
      if (found != others_.end()) job.train.emplace_back(found->flag, found->text);
    }
  }

  void sort_by_help(JobSpec& job) const {
    const auto place = [&](const std::string& name) {
      return std::find_if(flags_.begin(), flags_.end(), [&](const Flag& f) { return f.name == name; }) -
             flags_.begin();
    };
    const auto position = [&](const std::string& name) {
      const bool is_option = static_cast<std::size_t>(place(name)) == flags_.size();
      return is_option ? 2 * place("model") + 1 : 2 * place(name);
    };
    std::stable_sort(job.train.begin(), job.train.end(),
                     [&](const auto& a, const auto& b) { return position(a.first) < position(b.first); });
  }

  struct Value {
    std::string flag;
    std::string text;
    std::string where;
    std::string key;  ///< as it was written
  };

  struct List {
    std::string flag;
    std::vector<std::string> texts;
    std::string where;
  };

  std::string place(const Json& value) const { return value.where().empty() ? source_ : value.where(); }

  void member(const std::string& key, const Json& value) {
    if (key == "name") {
      read_name(value);
    } else if (key == "ranks") {
      read_ranks(value);
    } else if (key == "worker") {
      worker_ = scalar(key, value).value_or("");
    } else if (key == "hosts") {
      hosts_where_ = place(value);
      hosts_.list = words(key, value, ",");
    } else if (key == "on") {
      read_engine(value);
    } else if (key == "mounts") {
      const std::string list = words(key, value, ",");
      hosts_.container.mounts = list.empty() ? std::vector<std::string>{} : split(list, ',');
    } else if (key == "requeue") {
      hosts_.requeue = scalar(key, value) == "true";
    } else if (with_dashes(key) == "max-restarts") {
      const Result<std::int64_t> most = integer_from(scalar(key, value).value_or(""), 0, 1'000'000);
      if (!most)
        problems_.push_back({place(value), key + ": " + most.problems().front().what, "write 0 or more"});
      restarts_.most = static_cast<int>(most ? *most : 0);
    } else if (key == "heartbeat") {
      const Result<double> seconds = number_from(scalar(key, value).value_or(""), 0, 1e6);
      if (!seconds)
        problems_.push_back({place(value), key + ": " + seconds.problems().front().what,
                             "write seconds; 0: ranks may be suspended"});
      if (seconds && *seconds > 0 && *seconds < kLeastHeartbeat)
        problems_.push_back({place(value), key + ": healthy ranks give a sign of life every second only",
                             "write at least " + printed("%g", kLeastHeartbeat)});
      heartbeat_s_ = seconds ? *seconds : 0;
    } else if (with_dashes(key) == "spare-hosts") {
      const Result<std::vector<HostEntry>> spares = parse_hosts(words(key, value, ","));
      if (!spares) append(problems_, spares.problems());
      if (spares) restarts_.spares = *spares;
    } else if (with_dashes(key) == "smaller-plans") {
      read_smaller_plans(key, value);
    } else if (const Engine* engine = engine_with_section(key)) {
      members_of(key, value, [&](const std::string& k, const Json& v) { option(*engine, k, v); });
    } else if (std::string* text = text_of_hosts(with_dashes(key))) {
      *text = scalar(key, value).value_or("");
    } else if (key == "env") {
      members_of(key, value, [&](const std::string& k, const Json& v) { variable(k, v); });
    } else if (key == "args") {
      members_of(key, value, [&](const std::string& k, const Json& v) { flag(k, v); });
    } else {
      flag(key, value);
    }
  }

  template <class Take>
  void members_of(const std::string& key, const Json& value, Take take) {
    if (value.is_null()) return;
    if (!value.is_object()) {
      problems_.push_back({place(value), key + " is not a mapping", "e.g. " + key + ": {KEY: value}"});
      return;
    }
    for (const auto& [k, v] : value.members()) take(k, v);
  }

  void read_name(const Json& value) {
    const std::optional<std::string> text = scalar("name", value);
    if (!text) return;
    if (text->find('/') != std::string::npos || text->empty() || *text == "." || *text == "..") {
      problems_.push_back(
          {place(value), "name '" + *text + "' cannot name a folder", "use letters, digits and dashes"});
      return;
    }
    name_ = *text;
  }

  void read_ranks(const Json& value) {
    const std::optional<std::string> text = scalar("ranks", value);
    if (!text) return;
    const Result<std::int64_t> ranks = integer_from(*text, 1, kMostJobRanks);
    if (!ranks) {
      problems_.push_back(
          {place(value),
           "ranks is '" + *text + "', expected an integer from 1 to " + std::to_string(kMostJobRanks),
           {}});
      return;
    }
    ranks_ = static_cast<int>(*ranks);
    ranks_where_ = place(value);
  }

  std::string* text_of_hosts(const std::string& key) {
    if (key == "workdir") return &hosts_.workdir;
    if (key == "client") return &hosts_.client;
    if (key == "remote-millrace") return &hosts_.millrace;
    if (key == "container") return &hosts_.container.image;
    if (key == "container-runtime") return &hosts_.container.runtime;
    return nullptr;
  }

  /// "node1:2,node2:2", or a list of such words.
  std::string words(const std::string& key, const Json& value, const std::string& separator) {
    if (!value.is_array()) return scalar(key, value).value_or("");
    std::string list;
    for (const Json& item : value.items()) {
      const std::optional<std::string> text = scalar(key, item);
      if (text) list += (list.empty() ? "" : separator) + *text;
    }
    return list;
  }

  void read_engine(const Json& value) {
    const std::optional<std::string> text = scalar("on", value);
    if (!text) return;
    if (*text != "local" && !find_engine(*text))
      problems_.push_back({place(value), "on: '" + *text + "' is no engine", "one of " + engine_names(", ")});
    hosts_.on = *text;
    hosts_where_ = place(value);
  }

  static const Engine* engine_with_section(const std::string& name) {
    const Engine* engine = find_engine(name);
    return engine && engine->option ? engine : nullptr;
  }

  void option(const Engine& engine, const std::string& key, const Json& value) {
    const std::string name = with_dashes(key), as_written = std::string(engine.name) + "." + key;
    const std::optional<std::string> text = scalar(as_written, value);
    if (!text) return;
    if (const Status fits = engine.option(name, *text); !fits) {
      const Problem& problem = fits.problems().front();
      problems_.push_back({place(value), escaped(as_written) + problem.what, problem.hint});
      return;
    }
    NamedTexts& options = hosts_.options[engine.name];
    std::erase_if(options, [&](const auto& option) { return option.first == name; });
    options.emplace_back(name, *text);
  }

  void read_smaller_plans(const std::string& key, const Json& value) {
    smaller_where_ = place(value);
    restarts_.smaller_plans = split(words(key, value, ","), ',');
    if (takes_plans_beside()) return;
    for (const std::string& file : restarts_.smaller_plans) {
      if (const Result<Plan> plan = Plan::load(file); !plan) append(problems_, plan.problems());
    }
  }

  bool takes_plans_beside() const { return restarts_.smaller_plans == std::vector<std::string>{"auto"}; }

  /// `smaller_plans: auto`: those that `millrace plan --smaller` made beside the job's plan.
  void find_smaller_plans(const JobSpec& job) {
    const std::string* path = job.find("plan");
    const Result<Plan> whole = path ? Plan::load(*path) : Result<Plan>(Problem{});
    restarts_.smaller_plans.clear();
    if (!path)
      problems_.push_back({smaller_where_,
                           "smaller_plans: auto needs a plan, beside which smaller ones stand",
                           "plan: plan.json, of `millrace plan --smaller 2 --out plan.json`"});
    if (!whole) return;  // which is said elsewhere
    std::error_code ignored;
    for (int lost = 1;; ++lost) {
      const std::string file = smaller_plan_file(*path, lost);
      if (lost > 1 && !std::filesystem::exists(file, ignored)) return;
      const Result<Plan> plan = Plan::load(file);
      const std::string hint = "smaller_plans: auto takes it; `millrace plan --smaller 2 --out " + *path +
                               "` makes both, with the flags that made " + *path;
      if (!plan) {
        for (Problem problem : plan.problems())
          problems_.push_back({std::move(problem.where), std::move(problem.what), hint});
        return;
      }
      if (plan->graph_fingerprint != whole->graph_fingerprint || plan->microbatches != whole->microbatches)
        problems_.push_back(
            {file, "was not made with " + *path + ": its profile or its microbatches are others", hint});
      restarts_.smaller_plans.push_back(file);
    }
  }

  void place_hosts(JobSpec& job) {
    if (hosts_.on.empty() && !hosts_.list.empty()) hosts_.on = "ssh";
    for (const Engine* engine : kEngines)  // a queue's options mean its engine
      if (hosts_.on.empty() && engine->queue && engine->queue->script &&
          !hosts_.options_of(engine->name).empty())
        hosts_.on = engine->name;
    const Engine* engine = find_engine(hosts_.on);
    job.hosts = hosts_;
    if (!engine) {  // this host has all ranks
      job.hosts.on.clear();
      job.hosts.list.clear();
    }
    if (job.hosts.requeue && !(engine && engine->queue && engine->queue->script))
      problems_.push_back({source_, "requeue is of batch jobs of " + batch_engines(&Engine::title, " and "),
                           "on: " + batch_engines(&Engine::name, " or ") + ", or leave it out"});
    if (!engine) return;
    if (!engine->allocated && hosts_.list.empty())
      problems_.push_back(
          {hosts_where_, "on: " + hosts_.on + " needs hosts", "for example hosts: [node1:2, node2:2]"});
    if (hosts_.list.empty()) return;
    if (const Status placed = place_on_hosts(job); !placed) {
      for (const Problem& problem : placed.problems())
        problems_.push_back({hosts_where_, problem.where + ": " + problem.what, problem.hint});
    }
  }

  void variable(const std::string& key, const Json& value) {
    const std::optional<std::string> text = scalar("env." + key, value);
    if (!text) return;
    if (key.empty() || key.find('=') != std::string::npos) {
      problems_.push_back({place(value), "'" + key + "' cannot name an environment variable", {}});
    } else if (std::find(std::begin(kLauncherVariables), std::end(kLauncherVariables), key) !=
               std::end(kLauncherVariables)) {
      problems_.push_back({place(value), key + " is set by the launcher", "remove it from env"});
    } else {
      const auto found = std::find_if(environment_.begin(), environment_.end(),
                                      [&](const auto& e) { return e.first == key; });
      if (found == environment_.end()) {
        environment_.emplace_back(key, *text);
      } else {
        found->second = *text;
      }
    }
  }

  void flag(const std::string& key, const Json& value) {
    const bool plain = std::ranges::all_of(
        key, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; });
    if (!plain) {
      problems_.push_back(
          {place(value), "unknown key '" + escaped(key) + "'", "keys are letters, digits and dashes"});
      return;
    }
    const std::string name = name_of_alias(flags_, with_dashes(key));
    if (name == "dry-run") {
      problems_.push_back(
          {place(value), "'" + key + "' belongs on the command line", "`millrace launch JOB --dry-run`"});
      return;
    }
    const auto known =
        std::find_if(flags_.begin(), flags_.end(), [&](const Flag& f) { return f.name == name; });
    if (value.is_array()) return list(key, name, value);
    std::erase_if(lists_, [&](const List& list) { return list.flag == name; });
    const std::optional<std::string> text = scalar(key, value);
    if (!text) return;
    if (known == flags_.end()) return keep(others_, {name, *text, place(value), key});
    const std::string& as_given = value.written().empty() ? *text : value.written();
    if (const std::optional<Problem> wrong = problem_of_value(*known, as_given)) {
      problems_.push_back({place(value), key + ": " + wrong->what, wrong->hint});
      return;
    }
    keep(values_, {name, *text, place(value), key});
  }

  /// A value for each job of a job array: each is checked as the flag's, the first stands for the flag.
  void list(const std::string& key, const std::string& name, const Json& value) {
    if (value.size() == 0) {
      problems_.push_back({place(value), key + " is an empty list", "give a value for each job"});
      return;
    }
    std::vector<std::string> texts;
    for (const Json& item : value.items()) {
      const std::optional<std::string> text = scalar(key, item);
      if (!text) return;
      texts.push_back(*text);
    }
    const std::size_t before = problems_.size();
    const auto known = std::ranges::find(flags_, name, &Flag::name);
    for (std::size_t i = 1; i < texts.size() && known != flags_.end(); ++i) {
      if (const std::optional<Problem> wrong = problem_of_value(*known, texts[i]))
        problems_.push_back({place(value.items()[i]), key + ": " + wrong->what, wrong->hint});
    }
    flag(key, value.items().front());
    if (problems_.size() > before) return;
    const auto same = std::ranges::find(lists_, name, &List::flag);
    if (same == lists_.end())
      lists_.push_back({name, std::move(texts), place(value)});
    else
      *same = {name, std::move(texts), place(value)};
  }

  /// Returns what to write instead of a list that no job array has.
  std::string without_list(const List& list) const {
    const auto flag = std::ranges::find(flags_, list.flag, &Flag::name);
    std::optional<std::string> together;
    if (flag != flags_.end()) together = as_one_text(*flag, list.texts);
    if (together) return "write one text: " + list.flag + ": \"" + *together + "\"";
    return may_differ(list.flag) ? "with fused: true a job is trained with each" : "give one value";
  }

  /// Lists are of a job array, and of one length.
  void take_lists(JobSpec& job) {
    for (const List& list : lists_) {
      if (!job.find("fused"))
        problems_.push_back({list.where, list.flag + " needs one value, found a list", without_list(list)});
      else if (list.texts.size() != lists_.front().texts.size())
        problems_.push_back({list.where,
                             list.flag + " has " + std::to_string(list.texts.size()) + " values, " +
                                 lists_.front().flag + " has " + std::to_string(lists_.front().texts.size()),
                             "give every list as many values, or one value for all jobs"});
      job.lists.emplace_back(list.flag, list.texts);
    }
  }

  void keep(std::vector<Value>& values, Value value) {
    const auto twice = std::ranges::find(values, value.flag, &Value::flag);
    if (twice == values.end()) {
      values.push_back(std::move(value));
    } else if (overriding_) {
      *twice = std::move(value);
    } else {
      problems_.push_back(
          {value.where, value.key + " is given twice", "the first one is at " + twice->where});
    }
  }

  void unknown(const Value& value, const Models& models) {
    std::vector<std::string> names(std::begin(kJobKeys), std::end(kJobKeys));
    for (const Engine* engine : kEngines)
      if (engine->option) names.emplace_back(engine->name);
    for (const Flag& flag : flags_) names.push_back(flag.name);
    for (const ModelDescription& model : models)
      for (const ModelOption& option : model.options) names.push_back(option.name);
    const OtherWord* other = other_word(value.flag, flags_);
    const std::optional<std::string> nearest = nearest_name(value.flag, names);
    problems_.push_back({value.where, "unknown key '" + value.key + "'",
                         other     ? hint_of(*other, "")
                         : nearest ? "did you mean '" + *nearest + "'?"
                                   : "`millrace train --help all` lists the flags"});
  }

  /// A scalar as the text of a flag.
  /// One line of text: a second one would be a line of its own in scripts and logs.
  std::optional<std::string> scalar(const std::string& key, const Json& value) {
    std::optional<std::string> text = scalar_text(value);
    if (text &&
        std::ranges::any_of(*text, [](char c) { return std::iscntrl(static_cast<unsigned char>(c)); })) {
      problems_.push_back({place(value), escaped(key) + ": '" + escaped(*text) + "' has a control character",
                           "write it without line breaks and tabs"});
      return std::nullopt;
    }
    if (text) return with_home(*text);
    problems_.push_back(
        {place(value),
         key + " needs one value" + (value.is_null() ? " and has none" : ", found a list or mapping"),
         {}});
    return std::nullopt;
  }

  /// The number of ranks and their stages: from the plan, else from the schedule's file, else from `stages` x
  /// `replicas`, else `ranks` stages.
  void place_ranks(JobSpec& job) {
    const std::string* path = job.find("plan");
    if (path) return place_by_plan(job, *path);
    if (const std::string* file = job.find("schedule-file")) return place_by_schedule_file(job, *file);
    const int stages = count_of(job, "stages");
    const std::string* text = job.find("replicas");
    if (ranks_ && stages == 0 && !text) {
      job.ranks = *ranks_;
      if (job.ranks > 1) job.train.emplace_back("stages", std::to_string(job.ranks));
      for (int r = 0; r < job.ranks; ++r) job.stage_of_rank.push_back(r);
      job.loss_rank = job.ranks - 1;
      return;
    }
    const Result<std::vector<int>> replicas = parse_replicas(text ? *text : "1", std::max(1, stages));
    if (!replicas) {
      const auto given = std::ranges::find(values_, "replicas", &Value::flag);
      for (const Problem& problem : replicas.problems())
        problems_.push_back({given == values_.end() ? source_ : given->where,
                             "replicas: " + escaped(problem.what), problem.hint});
      return;
    }
    for (std::size_t s = 0; s < replicas->size(); ++s)
      job.stage_of_rank.insert(job.stage_of_rank.end(), static_cast<std::size_t>((*replicas)[s]),
                               static_cast<int>(s));
    job.ranks = static_cast<int>(job.stage_of_rank.size());
    if (!replicas->empty()) job.loss_rank = job.ranks - replicas->back();
    require_ranks(job, "stages x replicas is");
  }

  void place_by_schedule_file(JobSpec& job, const std::string& path) {
    const Result<std::string> text = read_file(path);
    const Result<CsvSchedule> order =
        text ? read_schedule_csv(*text, path, {.replicas = std::max(1, count_of(job, "replicas"))})
             : Result<CsvSchedule>(text.problems());
    if (!order) {
      append(problems_, order.problems());
      return;
    }
    job.ranks = order->shape.num_ranks();
    require_ranks(job, path + " has");
    place_stages(job, order->shape.ranks_of_stage);
  }

  /// The first stage of each rank stands for it in messages.
  static void place_stages(JobSpec& job, const std::vector<std::vector<RankId>>& ranks_of_stage) {
    job.stage_of_rank.assign(job.ranks, -1);
    if (!ranks_of_stage.empty() && !ranks_of_stage.back().empty())
      job.loss_rank = ranks_of_stage.back().front().value;
    for (std::size_t s = 0; s < ranks_of_stage.size(); ++s) {
      for (RankId rank : ranks_of_stage[s]) {
        int& stage = job.stage_of_rank[rank.value];
        if (stage < 0) stage = static_cast<int>(s);
      }
    }
  }

  // The path is a copy: it lies in `job.train`, which grows.
  void place_by_plan(JobSpec& job, const std::string path) {
    const Result<Plan> plan = Plan::load(path);
    if (!plan) {
      for (Problem problem : plan.problems()) {
        std::error_code ignored;
        const auto beside = std::filesystem::path(source_).parent_path() / path;
        if (!std::filesystem::exists(path, ignored) && std::filesystem::exists(beside, ignored)) {
          problem.hint = "paths are relative to the current folder; there is " + beside.string();
        }
        problems_.push_back(std::move(problem));
      }
      return;
    }
    const Problems invalid = validate(*plan);
    append(problems_, invalid);
    if (!invalid.empty()) return;
    const std::string* model = job.find("model");
    if (!model && !plan->model.empty()) {
      job.train.insert(job.train.begin(), {"model", plan->model});
    } else if (model && !plan->model.empty() && named_in_plans(*model) != plan->model) {
      problems_.push_back(
          {path, "is a plan for " + plan->model + ", the job trains " + *model, "plan again for " + *model});
    }
    job.ranks = plan->num_ranks();
    require_ranks(job, path + " has");
    place_stages(job, shape_of(*plan).ranks_of_stage);
  }

  void require_ranks(const JobSpec& job, const std::string& what) {
    if (!ranks_ || *ranks_ == job.ranks) return;
    problems_.push_back(
        {ranks_where_,
         "ranks is " + std::to_string(*ranks_) + ", but " + what + " " + std::to_string(job.ranks),
         "leave ranks out, or plan again with --ranks " + std::to_string(*ranks_)});
  }

  /// An exported model is named after its file, wherever that is.
  static std::string named_in_plans(const std::string& model) {
    return model.ends_with(".pt2") ? std::filesystem::path(model).filename().string() : model;
  }

  static int count_of(const JobSpec& job, std::string_view flag) {
    const std::string* text = job.find(flag);
    const Result<std::int64_t> count = integer_from(text ? *text : "", 0, into::kAny);
    return count ? static_cast<int>(std::min<std::int64_t>(*count, kMostJobRanks)) : 0;
  }

  std::string source_;
  Problems& problems_;
  const AskForModels& ask_;
  TrainFlags flag_values_;  ///< where values are tried
  std::vector<Flag> flags_;
  std::string worker_;  ///< empty: millrace's
  JobRestarts restarts_;
  std::string smaller_where_;
  double heartbeat_s_ = JobSpec().heartbeat_s;
  JobHosts hosts_;
  std::string hosts_where_;
  std::vector<Value> values_;
  std::vector<Value> others_;  // no flags of `train`
  std::vector<List> lists_;    // of a job array
  std::vector<std::pair<std::string, std::string>> environment_;
  std::string name_;
  std::optional<int> ranks_;
  std::string ranks_where_;
  bool overriding_ = false;
};

/// A plain scalar where YAML reads the same text back as a string or number, else a quoted one (JSON is
/// YAML).
std::string yaml_scalar(const std::string& text) {
  const bool plain = !text.empty() && text.size() < 200 && std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '/' || c == '.' || c == '-' ||
           c == '+';
  });
  return plain && text.front() != '-' ? text : Json(text).dump();
}

}  // namespace

Result<JobOverride> parse_override(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return Problem{"--set", "'" + text + "' is not KEY=VALUE", "for example --set steps=100"};
  }
  return JobOverride{text.substr(0, equals), text.substr(equals + 1)};
}

std::vector<JobOverride> environment_overrides() {
  constexpr std::string_view kPrefix = "MILLRACE_JOB_";
  std::vector<JobOverride> overrides;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    std::string key;
    for (std::size_t i = kPrefix.size(); i < equals; ++i) {
      const bool part = text.substr(i, 2) == "__";
      key += part ? '.' : static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
      i += part ? 1 : 0;
    }
    overrides.push_back(
        {std::move(key), std::string(text.substr(equals + 1)), std::string(text.substr(0, equals))});
  }
  std::ranges::sort(overrides, {}, &JobOverride::key);
  return overrides;
}

Result<JobSpec> job_from(const Json& json, const std::string& source,
                         const std::vector<JobOverride>& overrides, const AskForModels& ask,
                         const std::string& worker) {
  Problems problems;
  JobReader reader(source, problems, ask, worker);
  const bool planned =
      std::any_of(overrides.begin(), overrides.end(), [](const JobOverride& o) { return o.key == "plan"; });
  const StagesFrom stages = planned ? StagesFrom::Plan : StagesFrom::ConfigFile;
  if (is_pipedream_job(json)) {
    const Result<Json> converted = convert_pipedream_job(json, source, stages);
    if (!converted) return converted.problems();
    reader.read(*converted);
  } else {
    reader.read(json);
  }
  reader.override_with(environment_overrides());
  reader.override_with(overrides);
  JobSpec job = reader.finish();
  if (problems.empty() && !job.find("model")) {
    problems.push_back({source, "does not say which model to train", "add e.g. `model: mlp`"});
  }
  if (!problems.empty()) return problems;
  job.notes = notes_on_pipedream_job(json, stages);
  return job;
}

Result<JobSpec> load_job(const std::string& path, const std::vector<JobOverride>& overrides,
                         const std::string& worker) {
  const Result<Json> json = read_yaml(path);
  return json ? load_job(*json, path, overrides, worker) : json.problems();
}

Result<JobSpec> load_job(const Json& json, const std::string& path, const std::vector<JobOverride>& overrides,
                         const std::string& worker) {
  if (const Json* format = json.is_object() ? json.find("format") : nullptr;
      format && format->is_string() && format->as_string().starts_with("millrace-"))
    return Problem{path, "is a file of " + format->as_string() + " and no job",
                   format->as_string().starts_with("millrace-plan-")
                       ? "a job names its plan: {model: NAME, plan: " + path + ", steps: 100}"
                       : "a job says what to train: {model: NAME, steps: 100}"};
  const auto ask = [](const std::string& named) -> Result<Models> {
    static std::mutex mutex;
    static std::map<std::string, Models> known;  // by worker: a restart does not ask again
    const std::string asked = named.empty() ? any_worker() : named;
    if (asked.empty()) return Models{};
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(asked); found != known.end()) return found->second;
    Result<Models> models = models_of_worker(asked);
    if (models) known[asked] = *models;
    return models;
  };
  return job_from(json, path, overrides, ask, worker);
}

namespace {

/// The hosts that the job lists, else those that the engine's environment gives.
Result<std::vector<HostEntry>> hosts_of(const JobSpec& job) {
  const bool listed = !job.hosts.list.empty();
  Result<std::vector<HostEntry>> hosts =
      listed ? parse_hosts(job.hosts.list) : find_engine(job.hosts.on)->allocated();
  if (hosts && hosts->empty())
    return Problem{"hosts", "there is none", "for example hosts: [node1:2, node2:2]"};
  return hosts;
}

}  // namespace

Status place_on_hosts(JobSpec& job) {
  Result<std::vector<HostEntry>> hosts = hosts_of(job);
  if (!hosts) return hosts.problems();
  if (job.hosts.list.empty()) drop_idle_hosts(*hosts, job.ranks);
  Result<std::vector<int>> counts = ranks_of_hosts(*hosts, job.ranks);
  if (!counts) return counts.problems();
  job.hosts.entries = *std::move(hosts);
  job.hosts.ranks = *std::move(counts);
  return Ok{};
}

Result<std::vector<std::vector<HostEntry>>> host_groups(const JobSpec& job) {
  if (job.hosts.on.empty()) return std::vector<std::vector<HostEntry>>{};
  const Result<std::vector<HostEntry>> hosts = hosts_of(job);
  if (!hosts) return hosts.problems();
  return groups_of_hosts(*hosts, job.ranks);
}

void place_on_group(JobSpec& job, const std::vector<HostEntry>& group) {
  job.hosts.entries = group;
  job.hosts.ranks.clear();
  for (const HostEntry& host : group) job.hosts.ranks.push_back(host.slots);
}

namespace {

std::string yaml_list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + yaml_scalar(word);
  return text;
}

}  // namespace

std::string to_yaml(const JobSpec& job) {
  std::string text = "name: " + yaml_scalar(job.name) + "\nranks: " + std::to_string(job.ranks) + "\n";
  if (!job.worker.empty()) text += "worker: " + yaml_scalar(job.worker) + "\n";
  const JobHosts& hosts = job.hosts;
  for (const auto& [key, value] : {std::pair("on", hosts.on),
                                   {"hosts", hosts.list},
                                   {"client", hosts.client},
                                   {"workdir", hosts.workdir},
                                   {"remote_millrace", hosts.millrace},
                                   {"container", hosts.container.image}}) {
    if (!value.empty()) text += std::string(key) + ": " + yaml_scalar(value) + "\n";
  }
  if (!hosts.container.image.empty())
    text += "container_runtime: " + yaml_scalar(hosts.container.runtime) + "\n";
  if (!hosts.container.mounts.empty()) text += "mounts: [" + yaml_list(hosts.container.mounts) + "]\n";
  for (const Engine* engine : kEngines) {
    const NamedTexts& options = hosts.options_of(engine->name);
    if (!options.empty()) text += std::string(engine->name) + ":\n";
    for (const auto& [name, value] : options) text += "  " + name + ": " + yaml_scalar(value) + "\n";
  }
  if (hosts.requeue) text += "requeue: true\n";
  if (job.restarts.most > 0) text += "max_restarts: " + std::to_string(job.restarts.most) + "\n";
  if (job.heartbeat_s != JobSpec().heartbeat_s)
    text += "heartbeat: " + printed("%.9g", job.heartbeat_s) + "\n";
  std::vector<std::string> spares;
  for (const HostEntry& host : job.restarts.spares) spares.push_back(in_list(host));
  if (!spares.empty()) text += "spare_hosts: [" + yaml_list(spares) + "]\n";
  if (!job.restarts.smaller_plans.empty())
    text += "smaller_plans: [" + yaml_list(job.restarts.smaller_plans) + "]\n";
  for (const auto& [name, value] : job.train) {
    const auto list = std::find_if(job.lists.begin(), job.lists.end(),
                                   [&n = name](const auto& entry) { return entry.first == n; });
    if (list == job.lists.end()) {
      text += name + ": " + yaml_scalar(value) + "\n";
      continue;
    }
    text += name + ": [" + yaml_list(list->second) + "]\n";
  }
  if (!job.environment.empty()) text += "env:\n";
  for (const auto& [name, value] : job.environment)
    text += "  " + yaml_scalar(name) + ": " + yaml_scalar(value) + "\n";
  return text;
}

}  // namespace millrace
