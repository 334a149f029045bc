#include "data/files/hdf5.h"

#include <dlfcn.h>
#include <hdf5.h>

#include <algorithm>
#include <mutex>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/mapped_file.h"

namespace millrace {
namespace {

// The values of H5F_ACC_RDONLY and H5F_ACC_TRUNC. The header's macros also call into the library, which is
// not linked.
constexpr unsigned kReadOnly = 0, kTruncate = 2;

std::mutex& library_mutex() {
  static std::mutex mutex;  // guards every call into the library
  return mutex;
}

// clang-format off
#define MILLRACE_HDF5_FUNCTIONS(X) \
  X(H5open) X(H5Eset_auto2) X(H5Fcreate) X(H5Fopen) X(H5Fclose) X(H5Screate_simple) X(H5Sclose) \
  X(H5Sselect_hyperslab) X(H5Sget_simple_extent_ndims) X(H5Sget_simple_extent_dims) X(H5Dcreate2) \
  X(H5Dopen2) X(H5Dwrite) X(H5Dread) X(H5Dget_space) X(H5Dget_type) X(H5Dclose) X(H5Tget_size) X(H5Tclose) \
  X(H5Lexists) X(H5Pcreate) X(H5Pset_chunk) X(H5Pset_deflate) X(H5Pclose)
// clang-format on

/// The library's functions, found by name, with the types that the header gives them.
struct Library {
#define MILLRACE_MEMBER(function) decltype(&::function) function = nullptr;
  MILLRACE_HDF5_FUNCTIONS(MILLRACE_MEMBER)
#undef MILLRACE_MEMBER
  hid_t create_class = -1;
  hid_t types[11] = {};

  Library() {
    void* handle = nullptr;
    for (const char* name : {"libhdf5_serial.so.103", "libhdf5.so.103", "libhdf5_serial.so", "libhdf5.so"}) {
      if ((handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL))) break;
    }
    if (!handle)
      throw DataError("the HDF5 library is not installed, and format hdf5 needs it",
                      "on Debian: apt-get install libhdf5-103-1");
#define MILLRACE_TAKE(function) take(handle, #function, function);
    MILLRACE_HDF5_FUNCTIONS(MILLRACE_TAKE)
#undef MILLRACE_TAKE
    H5open();
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // the library must not print problems itself
    create_class = value(handle, "H5P_CLS_DATASET_CREATE_ID_g");
    // Little-endian standard types, in the order of Element; half floats travel as 16-bit integers.
    const char* names[] = {"H5T_STD_U8LE_g",  "H5T_STD_I8LE_g",   "H5T_STD_U16LE_g", "H5T_STD_I16LE_g",
                           "H5T_STD_U32LE_g", "H5T_STD_I32LE_g",  "H5T_STD_U64LE_g", "H5T_STD_I64LE_g",
                           "H5T_STD_U16LE_g", "H5T_IEEE_F32LE_g", "H5T_IEEE_F64LE_g"};
    for (int i = 0; i < 11; ++i) types[i] = value(handle, names[i]);
  }

 private:
  static void* symbol(void* handle, const char* name) {
    void* found = ::dlsym(handle, name);
    if (!found)
      throw DataError(std::string("the HDF5 library has no ") + name, "version 1.10 or later is needed");
    return found;
  }
  template <class Function>
  static void take(void* handle, const char* name, Function& function) {
    function = reinterpret_cast<Function>(symbol(handle, name));
  }
  static hid_t value(void* handle, const char* name) {
    return *static_cast<hid_t*>(symbol(handle, name));
  }
};

/// Returns the library and loads it on first use. The caller must hold library_mutex.
const Library& library() {
  static const Library loaded;
  return loaded;
}

/// Closes an id of the library at the end of the scope.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  operator hid_t() const { return id_; }  // NOLINT: used where the library takes an id

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

std::vector<hsize_t> sizes(const std::vector<std::int64_t>& shape) {
  return {shape.begin(), shape.end()};
}

void require(bool good, const std::string& path, const std::string& what) {
  if (!good)
    throw DataError(path + ": " + what, "the file is damaged or the disk is full: generate it again");
}

void write_set(const Library& h5, hid_t file, const std::string& path, const Hdf5DataSet& set) {
  const std::vector<hsize_t> shape = sizes(set.shape);
  const Handle space(h5.H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr), h5.H5Sclose);
  const Handle properties(h5.H5Pcreate(h5.create_class), h5.H5Pclose);
  std::vector<hsize_t> chunk = sizes(set.chunk);
  if (chunk.empty() && set.gzip_level > 0) {
    chunk = shape;
    chunk.front() = 1;
  }
  if (!chunk.empty()) {
    for (std::size_t i = 0; i < chunk.size() && i < shape.size(); ++i)
      chunk[i] = std::min(chunk[i], shape[i]);
    require(chunk.size() == shape.size() &&
                h5.H5Pset_chunk(properties, static_cast<int>(chunk.size()), chunk.data()) >= 0,
            path, "chunk_dims do not fit the records");
  }
  if (set.gzip_level > 0)
    require(h5.H5Pset_deflate(properties, static_cast<unsigned>(set.gzip_level)) >= 0, path,
            "gzip is not in HDF5");
  const hid_t type = h5.types[static_cast<int>(set.element)];
  const Handle data(h5.H5Dcreate2(file, set.name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT),
                    h5.H5Dclose);
  require(data >= 0, path, "data set " + set.name + " cannot be created");
  require(h5.H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, set.data.data()) >= 0, path,
          "data set " + set.name + " cannot be written");
}

}  // namespace

void write_hdf5(const std::string& path, const std::vector<Hdf5DataSet>& sets) {
  const std::lock_guard lock(library_mutex());
  const Library& h5 = library();
  const hid_t file = h5.H5Fcreate(path.c_str(), kTruncate, H5P_DEFAULT, H5P_DEFAULT);
  require(file >= 0, path, "cannot be created");
  try {
    for (const Hdf5DataSet& set : sets) write_set(h5, file, path, set);
  } catch (...) {
    h5.H5Fclose(file);
    throw;
  }
  require(h5.H5Fclose(file) >= 0, path, "cannot be written");
}

Hdf5File::Hdf5File(const std::string& path) : path_(path) {
  const std::lock_guard lock(library_mutex());
  file_ = library().H5Fopen(path.c_str(), kReadOnly, H5P_DEFAULT);
  if (file_ < 0) {
    if (const Result<MappedFile> file = MappedFile::open(path); !file)
      throw DataError(path + ": " + file.problems().front().what, file.problems().front().hint);
  }
  require(file_ >= 0, path_, "is no readable HDF5 file");
}

Hdf5File::~Hdf5File() {
  const std::lock_guard lock(library_mutex());
  library().H5Fclose(file_);
}

bool Hdf5File::has(const std::string& set) const {
  const std::lock_guard lock(library_mutex());
  return library().H5Lexists(file_, set.c_str(), H5P_DEFAULT) > 0;
}

std::vector<std::int64_t> Hdf5File::shape(const std::string& set) const {
  const std::lock_guard lock(library_mutex());
  const Library& h5 = library();
  const Handle data(h5.H5Dopen2(file_, set.c_str(), H5P_DEFAULT), h5.H5Dclose);
  require(data >= 0, path_, "has no data set " + set);
  const Handle space(h5.H5Dget_space(data), h5.H5Sclose);
  std::vector<hsize_t> shape(std::max(0, h5.H5Sget_simple_extent_ndims(space)));
  h5.H5Sget_simple_extent_dims(space, shape.data(), nullptr);
  return {shape.begin(), shape.end()};
}

void Hdf5File::read(const std::string& set, std::int64_t index, std::string& out) const {
  const std::vector<std::int64_t> whole = shape(set);
  const std::lock_guard lock(library_mutex());
  const Library& h5 = library();
  require(!whole.empty() && index >= 0 && index < whole[0], path_, "has no sample " + std::to_string(index));
  const Handle data(h5.H5Dopen2(file_, set.c_str(), H5P_DEFAULT), h5.H5Dclose);
  const Handle space(h5.H5Dget_space(data), h5.H5Sclose), type(h5.H5Dget_type(data), h5.H5Tclose);
  std::vector<hsize_t> start(whole.size(), 0), count = sizes(whole);
  start[0] = static_cast<hsize_t>(index);
  count[0] = 1;
  std::size_t bytes = h5.H5Tget_size(type);
  for (const hsize_t side : count)
    require(!__builtin_mul_overflow(bytes, side, &bytes) && bytes < (std::size_t{1} << 36), path_,
            "is too large");
  const Handle memory(h5.H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
                      h5.H5Sclose);
  require(h5.H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr) >= 0,
          path_, "has no sample " + std::to_string(index));
  const std::size_t old = out.size();
  out.resize(old + bytes);
  require(h5.H5Dread(data, type, memory, space, H5P_DEFAULT, out.data() + old) >= 0, path_,
          "data set " + set + " cannot be read");
}

}  // namespace millrace
