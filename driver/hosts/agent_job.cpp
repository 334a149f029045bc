#include "driver/hosts/agent_job.h"

#include "runtime/saved/hash.h"

namespace millrace {
namespace {

Json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json object = Json::object();
  for (const auto& [name, value] : pairs) object[name] = value;
  return object;
}

RankProcess rank_from(const Json& json, Problems& problems) {
  RankProcess process;
  ObjectReader in(json, problems);
  process.rank = in.whole("rank", 0, 1 << 20);
  process.stage = in.whole("stage", -1, 1 << 20);
  process.argv = in.strings("argv");
  if (const Json* environment = in.object("environment")) {
    for (const auto& [name, value] : environment->members()) {
      if (value.is_string())
        process.environment.emplace_back(name, value.as_string());
      else
        problems.push_back({"environment", name + " is no text", {}});
    }
  }
  in.finish();
  return process;
}

}  // namespace

Json to_json(const AgentJob& job) {
  Json inputs = Json::array(), ranks = Json::array();
  for (const AgentInput& input : job.inputs)
    inputs.push_back(Json::object({{"path", input.path}, {"hash", input.hash}, {"bytes", input.bytes}}));
  for (const RankProcess& process : job.ranks) {
    Json argv = Json::array();
    for (const std::string& word : process.argv) argv.push_back(word);
    ranks.push_back(Json::object({{"rank", process.rank},
                                  {"stage", process.stage},
                                  {"argv", argv},
                                  {"environment", pairs_json(process.environment)}}));
  }
  return Json::object({{"directory", job.directory},
                       {"output_dir", job.output_dir},
                       {"probe", job.probe},
                       {"worker", job.worker},
                       {"device", job.device},
                       {"meeting", job.meeting},
                       {"host", job.host},
                       {"heartbeat_ms", job.heartbeat_ms},
                       {"keeps_ranks", job.keeps_ranks},
                       {"only_asks", job.only_asks},
                       {"checkpoint", Json::object({{"folder", job.checkpoint.folder},
                                                    {"manifest", job.checkpoint.manifest}})},
                       {"inputs", inputs},
                       {"ranks", ranks}});
}

Result<AgentJob> agent_job_from(const Json& json) {
  AgentJob job;
  Problems problems;
  ObjectReader in(json, problems);
  job.directory = in.string("directory");
  job.output_dir = in.string("output_dir");
  job.probe = in.string("probe");
  job.worker = in.string("worker");
  job.device = in.string("device");
  job.meeting = in.string("meeting");
  job.host = in.whole("host", 0, 1 << 20);
  job.heartbeat_ms = in.whole("heartbeat_ms", 0, 1 << 30);
  job.keeps_ranks = in.boolean("keeps_ranks", false);
  job.only_asks = in.boolean("only_asks", false);
  if (const Json* checkpoint = in.object("checkpoint")) {
    ObjectReader of(*checkpoint, problems);
    job.checkpoint = {.folder = of.string("folder"), .manifest = of.string("manifest")};
    of.finish();
  }
  if (const Json* inputs = in.array("inputs")) {
    for (const Json& item : inputs->items()) {
      ObjectReader input(item, problems);
      job.inputs.push_back({input.string("path"), input.string("hash"), input.integer("bytes")});
      input.finish();
    }
  }
  if (const Json* ranks = in.array("ranks")) {
    for (const Json& item : ranks->items()) job.ranks.push_back(rank_from(item, problems));
  }
  in.finish();
  if (!problems.empty()) return problems;
  return job;
}

AgentInput input_file(const std::string& path) {
  const Result<FileDigest> digest = digest_of_file(path);
  return digest ? AgentInput{path, digest->hash.hex(), digest->bytes} : AgentInput{path};
}

}  // namespace millrace
