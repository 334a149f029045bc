#include "experiments/sweep/swept_file.h"

#include <algorithm>
#include <filesystem>

#include "driver/cli/home_path.h"
#include "experiments/sweep/fused_job.h"

namespace millrace {

void SweptFile::read_head(ObjectReader& in, const std::string& path) {
  source = path;
  name = in.string("name", std::filesystem::path(path).stem().string());
  output_dir = in.string("output_dir", "runs/" + name);
  seed = static_cast<std::uint64_t>(in.whole("seed", 0, 1 << 30, 1117));
}

void SweptFile::read_job(ObjectReader& in, const Varied& varied, const std::function<int()>& num_jobs,
                         bool fused, const char* verb, Problems& problems) {
  const Json* json = in.any("job");
  if (!json) {
    problems.push_back({source, std::string("does not say which job to ") + verb,
                        "add job: job.yaml, or job: {model: mlp, ...}"});
    return;
  }
  Result<SweptJob> swept = SweptJob::from(*json, source);
  if (!swept) return append(problems, swept.problems());
  job = *std::move(swept);
  if (problems.empty()) append(problems, problems_of_jobs(job, varied, seed, num_jobs()));
  if (!problems.empty() || !fused) return;
  if (const Result<JobSpec> array = fused_job(job, {settings_of(varied, seed, 0)}); !array)
    append(problems, array.problems());
}

void SweptFile::set_identity(const Json& file, std::initializer_list<std::string_view> beside) {
  identity = Json::object({{"job", job.json()}, {"seed", static_cast<std::int64_t>(seed)}});
  for (const auto& [key, value] : file.members()) {
    if (key != "job" && key != "seed" && key != "output_dir" &&
        std::ranges::find(beside, key) == beside.end())
      identity[key] = value;
  }
}

Result<Json> read_swept_file(const std::string& path, const char* what) {
  Result<Json> json = read_yaml(path);
  if (!json) return json;
  if (!json->is_object())
    return Problem{path, std::string(what) + " is a mapping of keys to values", "e.g. job: job.yaml"};
  return with_home(*std::move(json));
}

}  // namespace millrace
