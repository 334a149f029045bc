#include "driver/launch/pipedream_job.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "runtime/base/files.h"
#include "runtime/plan/pipedream_formats.h"

namespace millrace {
namespace {

// Read by nothing in PipeDream either, or about containers; see notes_on_pipedream_job.
constexpr const char* kIgnored[] = {"container", "verbose_frequency", "compress_activations",
                                    "compress_in_gpu", "translation_model"};

// vgg16's gpus=4/mp_conf.json of PipeDream has a key without quotes.
constexpr const char* kConfHint =
    "config_file is JSON such as {\"module_to_stage_map\": [0, 1, 1], \"stage_to_rank_map\": {\"0\": [0, 1, "
    "2], \"1\": [3]}}, every key in double quotes, each rank in one stage";

/// "models.vgg16.gpus=4" -> "vgg16".
std::string model_of(const std::string& module) {
  std::string name = module.rfind("models.", 0) == 0 ? module.substr(7) : module;
  return name.substr(0, name.find('.'));
}

std::string host_of(const std::string& machine) {
  return machine.substr(0, machine.rfind(':'));
}

bool is_local(const std::string& host) {
  return host == "localhost" || host == "127.0.0.1" || host == "::1";
}

/// Appends members to an object and keeps their places in the file.
class Writer {
 public:
  void put(const std::string& key, Json value, const Json* origin) {
    if (origin) value.set_where(origin->where());
    out.append_member(key, std::move(value));
  }
  void copy(const std::string& key, const Json* value) {
    if (value) put(key, *value, value);
  }
  Json out = Json::object();
};

class Converter {
 public:
  Converter(const Json& json, std::string source, StagesFrom from)
      : in_(json, problems_), source_(std::move(source)), from_(from) {}

  Result<Json> run() {
    read_model();
    read_machines();
    read_stages();
    read_hyperparameters();
    read_learning_rate_policy();
    for (const char* key : kIgnored) in_.any(key);
    in_.finish();
    if (!problems_.empty()) return problems_;
    return std::move(writer_.out);
  }

 private:
  void read_model() {
    const std::string module = in_.string("module");
    const std::string type = in_.string("model_type", "image_classification");
    const std::string model = model_of(module);
    translates_ = model == "gnmt" || model == "gnmt_large";
    if (type != "image_classification" && type != "translation") {
      in_.problem("model_type", "model_type: '" + type + "' is not supported",
                  "image_classification or translation");
    } else if (translates_ != (type == "translation") && !module.empty()) {
      in_.problem("model_type", "model_type: '" + type + "' is not that of " + model,
                  translates_ ? "translation" : "image_classification; translation has gnmt and gnmt_large");
    }
    writer_.put("model", model, in_.any("module"));
    const bool synthetic = in_.boolean("synthetic_data", false);
    const std::string folder = in_.string("data_dir", "");
    if (synthetic) {
      writer_.put("data", "synthetic", in_.any("synthetic_data"));
    } else if (!folder.empty()) {
      writer_.put("data", translates_ ? translation_data(folder) : folder, in_.any("data_dir"));
    }
    const std::string logs = in_.string("log_directory");
    const std::string run = std::filesystem::path(source_).stem().string();
    writer_.put("output-dir", (std::filesystem::path(logs) / run).string(), in_.any("log_directory"));
    const std::string backend = in_.string("distributed_backend", "gloo");
    if (backend != "gloo" && backend != "nccl")
      in_.problem("distributed_backend", "distributed_backend: '" + backend + "' is unknown", "gloo or nccl");
    writer_.put("backend", "auto", in_.any("distributed_backend"));
  }

  /// English to German, as PipeDream's translation; its files as token files.
  std::string translation_data(std::string folder) {
    namespace fs = std::filesystem;
    while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
    std::error_code ignored;
    const fs::path split = fs::path(folder) / "train.tok.clean.bpe.32000.en";
    if (fs::exists(split, ignored) && !fs::exists(fs::path(folder) / "train.en.tokens", ignored)) {
      in_.problem(
          "data_dir", folder + " has the split text but no token files",
          "there: millrace data text encode train.tok.clean.bpe.32000.en train.tok.clean.bpe.32000.de -v "
          "vocab.bpe.32000 --max-length 48 -o train.en.tokens -o train.de.tokens");
    }
    return folder + ":en-de";
  }

  void read_machines() {
    machines_ = in_.strings("machines");
    if (machines_.empty() && problems_.empty())
      in_.problem("machines", "machines lists no machine", "e.g. ['localhost:0', 'localhost:1']");
    writer_.put("ranks", static_cast<int>(machines_.size()), in_.any("machines"));
    put_hosts();
  }

  /// "node1:2,node2:2" of node1:0, node1:1, node2:0, node2:1; nothing if all machines are localhost.
  void put_hosts() {
    std::vector<std::pair<std::string, int>> hosts;
    for (const std::string& machine : machines_) {
      const std::string host = host_of(machine);
      if (!hosts.empty() && hosts.back().first == host) {
        ++hosts.back().second;
      } else if (std::ranges::find(hosts, host, &std::pair<std::string, int>::first) != hosts.end()) {
        in_.problem("machines", "machines returns to " + host + " after another host",
                    "list the machines of each host one after the other");
        return;
      } else {
        hosts.emplace_back(host, 1);
      }
    }
    if (std::ranges::all_of(hosts, [](const auto& host) { return is_local(host.first); })) return;
    std::string list;
    for (const auto& [host, ranks] : hosts)
      list += (list.empty() ? "" : ",") + host + ":" + std::to_string(ranks);
    writer_.put("hosts", list, in_.any("machines"));
  }

  /// Ranks of each stage by config_file; one stage on all ranks without it, as PipeDream's data-parallel
  /// runs.
  void read_stages() {
    const std::string path = in_.string("config_file", "");
    if (from_ == StagesFrom::Plan) return;
    if (path.empty()) return use_stages({std::max(1, static_cast<int>(machines_.size()))}, nullptr);
    const Result<std::string> text = read_file(path);
    const Result<PipeDreamConf> conf =
        text ? parse_pipedream_conf(*text, path) : Result<PipeDreamConf>(text.problems());
    if (!conf) {
      for (Problem problem : conf.problems()) {
        if (text && problem.hint.empty()) problem.hint = kConfHint;
        problems_.push_back(std::move(problem));
      }
      return;
    }
    std::vector<int> replicas;
    int ranks = 0;
    for (const auto& [stage, members] : conf->stage_to_rank_map) {
      replicas.push_back(static_cast<int>(members.size()));
      ranks += replicas.back();
    }
    if (ranks != static_cast<int>(machines_.size())) {
      in_.problem(
          "machines",
          "machines lists " + std::to_string(machines_.size()) + " machines, " + path + " has " +
              std::to_string(ranks) + " ranks",
          ranks < static_cast<int>(machines_.size())
              ? "leave out the last " + std::to_string(static_cast<int>(machines_.size()) - ranks) +
                    ": PipeDream's runtime ends them by an assertion, the configuration has no stage for them"
              : "list one machine for each rank");
      return;
    }
    use_stages(replicas, in_.any("config_file"));
  }

  /// One number if all stages have as many.
  void use_stages(const std::vector<int>& replicas, const Json* origin) {
    round_ = 1;
    for (int count : replicas) round_ = std::lcm(round_, count);
    pipelined_ = replicas.size() > 1;
    unequal_ = std::ranges::any_of(replicas, [&](int count) { return count != replicas.front(); });
    std::string text = std::to_string(replicas.front());
    for (std::size_t s = 1; unequal_ && s < replicas.size(); ++s) text += "," + std::to_string(replicas[s]);
    writer_.put("stages", static_cast<int>(replicas.size()), origin);
    writer_.put("replicas", unequal_ ? Json(text) : Json(replicas.front()), origin);
  }

  void read_hyperparameters() {
    const bool flush = in_.boolean("no_input_pipelining", false);
    if (in_.boolean("macrobatch", false)) {
      in_.problem("macrobatch", "macrobatch is not supported",
                  "remove it; schedule pipedream-2bw keeps two versions and updates every --microbatches");
    }
    if (in_.boolean("recompute", false)) writer_.put("recompute", true, in_.any("recompute"));
    // One minibatch of PipeDream is one microbatch here. Data parallel: one for each rank, then the update.
    const bool asynchronous = pipelined_ && !flush;
    if (from_ == StagesFrom::ConfigFile) {
      writer_.put("schedule", asynchronous ? "pipedream" : "1f1b", in_.any("no_input_pipelining"));
      if (!asynchronous) writer_.put("microbatches", round_, nullptr);
      // Stage rate = base x ranks(stage) / ranks(stage 0): later stages update more often for fewer replicas.
      if (asynchronous && unequal_) writer_.put("lr-by-replicas", true, nullptr);
    }
    writer_.copy("microbatch", in_.any("batch_size"));
    writer_.put("lr", in_.number("learning_rate", 0.1), in_.any("learning_rate"));
    writer_.put("weight-decay", in_.number("weight_decay", 1e-4), in_.any("weight_decay"));
    writer_.put("epochs", Json(in_.integer("epochs", translates_ ? 8 : 90)), in_.any("epochs"));
    if (translates_) writer_.put("rule", "adam", nullptr);
    writer_.copy("print-every", in_.any("print_frequency"));
    // Five epochs, linear (pipedream: main_with_runtime.py's --lr_warmup).
    const bool warmup = in_.boolean("lr_warmup", false);
    if (warmup && translates_)
      in_.problem("lr_warmup", "lr_warmup is of image classification",
                  "remove it; PipeDream's translation ends at it");
    else if (warmup)
      writer_.put("warmup-epochs", 5, in_.any("lr_warmup"));
  }

  void read_learning_rate_policy() {
    const std::string policy = in_.string("learning_rate_policy", "step");
    if (translates_) writer_.put("lr-per-epoch", true, nullptr);  // images change it in each step
    if (policy == "polynomial") {
      writer_.put("lr-policy", "polynomial", in_.any("learning_rate_policy"));
    } else if (policy == "exponential_decay") {
      writer_.put("lr-policy", "exponential", in_.any("learning_rate_policy"));
      writer_.put("gamma", 0.97, nullptr);
    } else if (policy == "step") {  // x 0.1 every 30 epochs
      writer_.put("lr-policy", "step", in_.any("learning_rate_policy"));
      writer_.put("lr-step-epochs", 30, nullptr);
      writer_.put("gamma", 0.1, nullptr);
    } else {
      in_.problem("learning_rate_policy", "learning_rate_policy: '" + policy + "' is unknown",
                  "step, polynomial or exponential_decay");
    }
  }

  Problems problems_;
  ObjectReader in_;
  std::string source_;
  Writer writer_;
  std::vector<std::string> machines_;
  StagesFrom from_;
  int round_ = 1;  ///< least common multiple of the stages' ranks
  bool pipelined_ = false, unequal_ = false;
  bool translates_ = false;
};

/// "stage 0: module 0; stage 1: modules 1, 2".
std::string modules_by_stage(const PipeDreamConf& conf) {
  std::map<int, std::vector<std::size_t>> modules;
  for (std::size_t m = 0; m < conf.module_to_stage_map.size(); ++m)
    modules[conf.module_to_stage_map[m]].push_back(m);
  std::string text;
  for (const auto& [stage, members] : modules) {
    text += (text.empty() ? "stage " : "; stage ") + std::to_string(stage) +
            (members.size() == 1 ? ": module " : ": modules ");
    for (std::size_t i = 0; i < members.size(); ++i) text += (i ? ", " : "") + std::to_string(members[i]);
  }
  return text;
}

/// Here a stage's ranks follow each other: those of stage 0 come first. Confs that were written by hand mix
/// the stages on each machine.
void add_note_on_places(const PipeDreamConf& conf, const std::string& name, std::vector<std::string>& notes) {
  int next = 0;
  for (const auto& [stage, ranks] : conf.stage_to_rank_map) {
    for (const int rank : ranks) {
      if (rank == next++) continue;
      notes.push_back(
          "stage_to_rank_map of " + name +
          " mixes the stages on the machines. Here the first ranks are those of stage 0, and so on: a "
          "stage of " +
          std::to_string(ranks.size()) +
          " ranks has the next machines of the list. To have it otherwise, list the machines in the "
          "order of the stages");
      return;
    }
  }
}

/// PipeDream's cut is in the code that its generator wrote, which nothing here reads.
void add_notes_on_cut(const Json& json, StagesFrom stages, std::vector<std::string>& notes) {
  const Json* path = json.find("config_file");
  const Json* module = json.find("module");
  if (!path || !path->is_string() || !module->is_string()) return;
  const std::string& name = path->as_string();
  if (stages == StagesFrom::Plan) {
    notes.push_back("config_file " + name + " has no effect: the plan says the stages");
    return;
  }
  const Result<std::string> text = read_file(name);
  const Result<PipeDreamConf> conf =
      text ? parse_pipedream_conf(*text, name) : Result<PipeDreamConf>(text.problems());
  if (!conf || conf->stage_to_rank_map.size() < 2) return;
  notes.push_back("the cut is another than PipeDream's. There the files of " + module->as_string() +
                  " hold the layers of each module, and " + name + " says " + modules_by_stage(*conf) +
                  ". Here each of the " + std::to_string(conf->stage_to_rank_map.size()) +
                  " stages has an equal number of " + model_of(module->as_string()) +
                  "'s layers; the log of rank 0 names them. For a cut of your own: --set plan=FILE, which "
                  "`millrace plan` writes");
  add_note_on_places(*conf, name, notes);
  if (!conf->stage_to_depth_map.empty())
    notes.push_back("stage_to_depth_map of " + name +
                    " has no effect: the schedule says how many minibatches a stage has under way");
}

}  // namespace

bool is_pipedream_job(const Json& json) {
  return json.find("module") && json.find("machines");
}

Result<Json> convert_pipedream_job(const Json& json, const std::string& source, StagesFrom stages) {
  return Converter(json, source, stages).run();
}

std::vector<std::string> notes_on_pipedream_job(const Json& json, StagesFrom stages) {
  std::vector<std::string> notes;
  if (!is_pipedream_job(json)) return notes;
  std::set<std::string> hosts;
  if (const Json* machines = json.find("machines"); machines && machines->is_array()) {
    for (const Json& machine : machines->items()) {
      if (machine.is_string() && !is_local(host_of(machine.as_string())))
        hosts.insert(host_of(machine.as_string()));
    }
  }
  if (!hosts.empty())
    notes.push_back("machines names " + *hosts.begin() + (hosts.size() > 1 ? " and others" : "") +
                    ": ranks start there, over ssh; --on local starts all on this host");
  add_notes_on_cut(json, stages, notes);
  for (const char* key : kIgnored) {
    if (!json.find(key)) continue;
    const bool image = std::string_view(key) == "container";
    notes.push_back(std::string(key) + " has no effect" +
                    (image ? ": that image has PipeDream; --container names one that has millrace" : ""));
  }
  return notes;
}

}  // namespace millrace
