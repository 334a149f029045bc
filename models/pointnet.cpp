// PointNet (arXiv 1612.00593) for classes of shapes and for their parts; names as in HFTA's example, where
// the convolutions over points are linear layers.
#include "models/model.h"
#include "runtime/layers/point_layers.h"

namespace millrace {
namespace {

constexpr std::int64_t kPointFeatures = 64, kGlobalFeatures = 1024;
constexpr double kRegulariser = 0.001;

class PointNetBuilder {
 public:
  explicit PointNetBuilder(LayeredModel& model) : chain_(model) { chain_.go_back_to("points"); }

  /// Appends a linear layer, batch normalisation number `number`, and ReLU.
  void step(const std::string& prefix, const std::string& layer, int number, std::int64_t in,
            std::int64_t out) {
    chain_.then(prefix + layer, linear(in, out));
    normalise(prefix, number, out);
  }
  void normalise(const std::string& prefix, int number, std::int64_t features) {
    chain_.then(prefix + "bn" + std::to_string(number), batch_norm1d(features));
    chain_.then(prefix + "relu" + std::to_string(number), relu());
  }

  /// Computes a matrix from the points that were made last, and multiplies the points with it.
  void transform(const std::string& prefix, std::int64_t size) {
    const std::string points = chain_.last();
    step(prefix, "conv1", 1, size, 64);
    step(prefix, "conv2", 2, 64, 128);
    step(prefix, "conv3", 3, 128, 1024);
    chain_.then(prefix + "max", max_over_points());
    step(prefix, "fc1", 4, 1024, 512);
    step(prefix, "fc2", 5, 512, 256);
    chain_.then(prefix + "fc3", linear(256, size * size));
    const std::string matrix = chain_.then(prefix + "matrix", transform_matrix(size));
    chain_.join(prefix + "points", transform_points(), {points, matrix});
  }

  /// Appends the layers up to the features of the cloud. `points()` names the features of its points.
  void features(bool feature_transform) {
    transform("feat.stn.", 3);
    step("feat.", "conv1", 1, 3, kPointFeatures);
    if (feature_transform) transform("feat.fstn.", kPointFeatures);
    points_ = chain_.last();
    step("feat.", "conv2", 2, kPointFeatures, 128);
    chain_.then("feat.conv3", linear(128, kGlobalFeatures));
    chain_.then("feat.bn3", batch_norm1d(kGlobalFeatures));
    chain_.then("feat.max", max_over_points());
  }
  const std::string& points() const { return points_; }
  Chain& chain() { return chain_; }

 private:
  Chain chain_;
  std::string points_;
};

/// Adds the loss. It is called "class" beside the regulariser of the feature transform, else "loss".
void end_in(LayeredModel& model, HeadPtr head, bool feature_transform) {
  model.heads = {{feature_transform ? "class" : "loss",
                  std::move(head),
                  {model.layers.back().name, model.fields.back().name}}};
  if (feature_transform)
    model.heads.push_back({"transform", orthogonality_head(), {"feat.fstn.matrix"}, kRegulariser});
}

bool transforms_features(const ModelOptions& options) {
  return options.text("feature-transform") == "on";
}

Result<LayeredModel> make_classifier(const ModelOptions& options) {
  const int classes = or_else(options, "classes", 16);
  const bool feature_transform = transforms_features(options);
  LayeredModel model{
      .name = "pointnet_cls",
      .fields = {
          {.name = "points", .shape = {options.integer("points"), 3}, .form = SampleForm::Points},
          {.name = "target", .shape = {}, .dtype = at::kLong, .limit = classes, .form = SampleForm::Points}}};
  PointNetBuilder builder(model);
  builder.features(feature_transform);
  builder.step("", "fc1", 1, kGlobalFeatures, 512);
  builder.chain().then("fc2", linear(512, 256));
  builder.chain().drop("dropout", probability_or_else(options, "dropout", 0.3));
  builder.normalise("", 2, 256);
  builder.chain().then("fc3", linear(256, classes));
  end_in(model, cross_entropy_head(), feature_transform);
  return model;
}

Result<LayeredModel> make_segmenter(const ModelOptions& options) {
  const int parts = or_else(options, "classes", 4);
  const bool feature_transform = transforms_features(options);
  const std::int64_t points = options.integer("points");
  LayeredModel model{.name = "pointnet_seg",
                     .fields = {{.name = "points", .shape = {points, 3}, .form = SampleForm::Points},
                                {.name = "labels",
                                 .shape = {points},
                                 .dtype = at::kLong,
                                 .limit = parts,
                                 .form = SampleForm::Points}}};
  PointNetBuilder builder(model);
  builder.features(feature_transform);
  builder.chain().join("feat.concat", concat_global(), {builder.chain().last(), builder.points()});
  builder.step("", "conv1", 1, kGlobalFeatures + kPointFeatures, 512);
  builder.step("", "conv2", 2, 512, 256);
  builder.step("", "conv3", 3, 256, 128);
  builder.chain().then("conv4", linear(128, parts));
  end_in(model, point_cross_entropy_head(parts), feature_transform);
  return model;
}

std::vector<ModelOption> point_options() {
  return {classes_option(), integer_option("points", 2500, {2, 1 << 20}, "Points of a cloud."),
          choice_option("feature-transform", "off", {"off", "on"},
                        "A learned matrix for the features of points, with its regulariser times 0.001.")};
}

}  // namespace

std::vector<Model> pointnet_models() {
  std::vector<ModelOption> of_classifier = point_options();
  of_classifier.push_back(dropout_option());
  return {{{.name = "pointnet_cls",
            .summary = "PointNet, classes of point clouds (arXiv 1612.00593).",
            .options = of_classifier},
           make_classifier},
          {{.name = "pointnet_seg",
            .summary = "PointNet, parts of the shapes of one category (arXiv 1612.00593).",
            .options = point_options()},
           make_segmenter}};
}

}  // namespace millrace
