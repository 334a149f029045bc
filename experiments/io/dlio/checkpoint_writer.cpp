#include "experiments/io/dlio/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "data/files/file_writer.h"
#include "data/files/little_endian.h"
#include "data/made_up/payload.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

int bytes_of(const std::string& datatype) {
  return datatype == "fp64" ? 8 : datatype == "fp32" ? 4 : datatype == "fp16" || datatype == "bf16" ? 2 : 1;
}

/// safetensors' names of the types.
const char* stored_type(const std::string& datatype) {
  if (datatype == "fp64") return "F64";
  if (datatype == "fp32") return "F32";
  if (datatype == "fp16") return "F16";
  if (datatype == "bf16") return "BF16";
  return datatype == "int8" ? "I8" : "U8";
}

CheckpointTensor tensor(std::string name, std::int64_t elements, const std::string& datatype) {
  return {std::move(name), datatype, elements, elements * bytes_of(datatype)};
}

/// The position of a rank: tensor-parallel ranks are neighbours, then pipeline stages, then replicas.
struct Position {
  std::int64_t model_parallel, model_rank, pipeline_rank, data_rank, data;
};

Position position_of(const DlioConfig& config, int rank, int ranks) {
  const auto& m = config.model;
  const std::int64_t width = m.tensor * m.pipeline;
  return {width, rank % width, rank / m.tensor % m.pipeline, rank / width,
          m.data > 0 ? m.data : std::max<std::int64_t>(1, ranks / width)};
}

struct Layers {
  std::int64_t first, last;  // both included; empty if last < first
};

/// Layer 0 is the embedding, num_layers + 1 the head, num_layers + 2 the final norm.
Layers layers_of(const DlioConfig& config, std::int64_t stage) {
  const std::int64_t layers = config.model.num_layers, stages = config.model.pipeline;
  const std::int64_t each = layers / stages, more = layers % stages;
  const std::int64_t first = stage * each + std::min(stage, more) + 1;
  Layers own{first, first + each + (stage < more) - 1};
  if (!config.model.layer_parameters.empty()) return own;
  if (stage == 0) own.first = 0;
  if (stage == stages - 1) own.last = layers + 2;
  return own;
}

std::vector<std::int64_t> layer_parameters(const DlioConfig& config, std::int64_t layer, std::int64_t data) {
  const auto& m = config.model;
  if (!m.layer_parameters.empty()) {
    std::vector<std::int64_t> own = m.layer_parameters;
    for (std::int64_t& count : own) count /= m.tensor;
    return own;
  }
  const std::int64_t shards = m.zero_stage < 3 ? 1 : data, split = m.tensor * shards;
  const std::int64_t kv = m.hidden / m.heads * m.kv_heads;
  if (layer == 0 || layer == m.num_layers + 1) return {m.hidden * m.vocabulary / split};
  if (layer == m.num_layers + 2) return {m.hidden / shards};
  return {m.hidden / shards, m.hidden * (m.hidden + 2 * kv) / split, m.hidden * m.hidden / split,
          m.hidden / shards, m.hidden * 2 * m.ffn_hidden / split,    m.hidden * m.ffn_hidden / split};
}

std::vector<CheckpointTensor> layer_tensors(const DlioConfig& config, std::int64_t layer, std::int64_t data) {
  std::vector<CheckpointTensor> tensors;
  const std::string datatype = config.model.layer_parameters.empty() ? config.model.model_datatype : "int8";
  int index = 0;
  for (const std::int64_t count : layer_parameters(config, layer, data)) {
    if (count > 0)
      tensors.push_back(
          tensor("layer_" + std::to_string(layer) + "." + std::to_string(index), count, datatype));
    ++index;
  }
  return tensors;
}

std::vector<CheckpointTensor> optimizer_tensors(const DlioConfig& config, const Position& at) {
  std::vector<CheckpointTensor> tensors;
  const auto& m = config.model;
  if (!m.optimization_groups.empty()) {
    // Each group twice (two moments) and all of them once more as one flat copy, in bytes.
    for (std::size_t i = 0; i < m.optimization_groups.size(); ++i) {
      for (const char* part : {".a", ".b"})
        tensors.push_back(tensor(std::to_string(i) + part, m.optimization_groups[i], "int8"));
    }
    tensors.push_back(
        tensor("combined",
               std::accumulate(m.optimization_groups.begin(), m.optimization_groups.end(), std::int64_t{0}),
               "int8"));
    return tensors;
  }
  if (m.num_layers <= 0) return {};
  const std::int64_t own =
      num_parameters(config) / (m.zero_stage > 0 ? at.data * at.model_parallel : at.model_parallel);
  if (own <= 0) return {};
  for (int copy = 0; copy < 3; ++copy) {
    tensors.push_back(tensor(std::to_string(2 * copy), own, m.optimizer_datatype));
    tensors.push_back(tensor(std::to_string(2 * copy + 1), m.hidden * 5, m.optimizer_datatype));
  }
  return tensors;
}

std::string header_of(const CheckpointFile& file) {
  Json header = Json::object();
  Bytes at = 0;
  for (const CheckpointTensor& t : file.tensors) {
    Json shape = Json::array(), place = Json::array();
    shape.push_back(t.elements);
    place.push_back(at);
    place.push_back(at += t.bytes);
    header[t.name] =
        Json::object({{"dtype", stored_type(t.datatype)}, {"shape", shape}, {"data_offsets", place}});
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes;
  put_little(bytes, static_cast<std::uint64_t>(text.size()));
  return bytes + text;
}

std::string path_of(const std::string& folder, const CheckpointFile& file) {
  return (fs::path(folder) / (file.name + ".safetensors")).string();
}

}  // namespace

Bytes CheckpointFile::bytes() const {
  Bytes sum = 0;
  for (const CheckpointTensor& t : tensors) sum += t.bytes;
  return sum;
}

std::int64_t num_parameters(const DlioConfig& config) {
  const auto& m = config.model;
  if (m.num_layers <= 0) return 0;
  const std::int64_t kv = m.hidden / m.heads * m.kv_heads;
  const std::int64_t layer =
      2 * m.hidden + m.hidden * (m.hidden + 2 * kv) + m.hidden * m.hidden + 3 * m.hidden * m.ffn_hidden;
  return 2 * m.vocabulary * m.hidden + layer * m.num_layers + m.hidden;
}

std::vector<CheckpointFile> checkpoint_files(const DlioConfig& config, int rank, int ranks) {
  const auto& m = config.model;
  const Position at = position_of(config, rank, ranks);
  // Without ZeRO the replicas hold the same; only the first saves, unless every rank is asked to.
  if (m.zero_stage == 0 && rank >= at.model_parallel && !config.checkpoint.all_ranks) return {};
  std::vector<CheckpointFile> files;
  if (m.size_bytes > 0 && m.type != "transformer") {
    files.push_back({"model_states-" + std::to_string(rank), {tensor("a", m.size_bytes, "int8")}});
  }
  const std::string shard =
      "zero_pp_rank_" + std::to_string(at.data_rank) + "_mp_rank_" + std::to_string(at.model_rank);
  const bool saves_layers = m.num_layers > 0 && (m.zero_stage != 1 || at.data_rank == 0) &&
                            (m.zero_stage != 2 || at.data_rank == 0);
  if (saves_layers) {
    const Layers own = layers_of(config, at.pipeline_rank);
    CheckpointFile whole;
    for (std::int64_t layer = own.first; layer <= own.last; ++layer) {
      const std::vector<CheckpointTensor> tensors = layer_tensors(config, layer, at.data);
      if ((m.zero_stage == 1 || m.zero_stage == 2) && m.pipeline > 1) {
        files.push_back(
            {"layer_" + std::to_string(layer) + "-model_" + std::to_string(at.model_rank) + "_model_states",
             tensors});
      } else {
        whole.tensors.insert(whole.tensors.end(), tensors.begin(), tensors.end());
      }
    }
    whole.name = m.zero_stage == 1 || m.zero_stage == 2
                     ? "model_" + std::to_string(at.model_rank) + "_model_states"
                     : shard + "_model_states";
    if (!whole.tensors.empty()) files.push_back(std::move(whole));
  }
  if (std::vector<CheckpointTensor> states = optimizer_tensors(config, at); !states.empty())
    files.push_back({shard + "_optim_states", std::move(states)});
  return files;
}

Problems check_checkpoint_shape(const DlioConfig& config, int ranks) {
  const std::int64_t width = config.model.tensor * config.model.pipeline;
  if (config.checkpoint.subset) {
    if (ranks <= width * config.model.data) return {};
    return {{"--ranks",
             std::to_string(ranks) + " ranks are more than the job of tensor * pipeline * data = " +
                 std::to_string(width * config.model.data),
             "a subset has at most as many"}};
  }
  if (ranks % width != 0)
    return {{"--ranks",
             std::to_string(ranks) + " ranks are no multiple of tensor * pipeline = " + std::to_string(width),
             "give a multiple, or write a part of the job: ++workload.checkpoint.mode=subset "
             "++workload.model.parallelism.data=N"}};
  if (config.model.data > 0 && config.model.data * width != ranks)
    return {
        {"workload.model.parallelism.data",
         "is not " + std::to_string(ranks / width) + ", the replicas of " + std::to_string(ranks) + " ranks",
         "leave it out, or set checkpoint.mode to subset"}};
  return {};
}

Bytes write_checkpoint(const std::string& folder, const std::vector<CheckpointFile>& files, bool fsync,
                       bool randomize, std::uint64_t seed) {
  constexpr std::int64_t kPart = 4 << 20;
  Bytes written = 0;
  try {
    fs::create_directories(folder);
    for (const CheckpointFile& file : files) {
      const Payload payload(derive_seed(seed, file.name), Element::UInt8, {});
      FileWriter out(path_of(folder, file), kPart);
      out.write(header_of(file));
      const Bytes bytes = file.bytes();
      for (Bytes at = 0; at < bytes; at += kPart) {
        const Bytes now = std::min<Bytes>(kPart, bytes - at);
        char* const part = out.reserve(now);
        if (randomize)
          payload.fill(at, part, now);
        else
          std::fill(part, part + now, '\0');
      }
      out.commit(fsync ? Durability::Synced : Durability::Cached);
      written += bytes;
    }
    if (fsync) {
      // The names too: a file without one is lost.
      const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      const bool synced = fd >= 0 && ::fsync(fd) == 0;
      if (fd >= 0) ::close(fd);
      if (!synced) throw CheckpointError(folder + ": fsync failed");
    }
  } catch (const fs::filesystem_error& error) {
    throw CheckpointError(error.what(), "give a checkpoint folder that you may write");
  } catch (const DataError& error) {
    throw CheckpointError(error.what(), error.hint());
  }
  return written;
}

Bytes read_checkpoint(const std::string& folder, const std::vector<CheckpointFile>& files) {
  constexpr Bytes kPart = 4 << 20;
  Bytes read = 0;
  AlignedBuffer buffer;
  try {
    for (const CheckpointFile& file : files) {
      const FileReader in(path_of(folder, file), {});
      const Bytes expected = static_cast<Bytes>(header_of(file).size()) + file.bytes();
      if (in.size() != expected)
        throw CheckpointError(
            in.path() + ": has " + std::to_string(in.size()) + " bytes, expected " + std::to_string(expected),
            "write the checkpoints with the same workload and ranks first");
      for (Bytes at = 0; at < expected; at += kPart)
        (void)in.read(at, std::min(kPart, expected - at), buffer);
      read += file.bytes();
    }
  } catch (const DataError& error) {
    throw CheckpointError(error.what(), "write the checkpoints with the same workload and ranks first");
  }
  return read;
}

}  // namespace millrace
