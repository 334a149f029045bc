#include "experiments/sweep/fused_job.h"

namespace millrace {

Result<JobSpec> fused_job(const SweptJob& job, const std::vector<JobSettings>& settings,
                          const std::vector<std::string>&) {
  return job.with(settings.front());
}

}  // namespace millrace
