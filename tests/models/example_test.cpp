// The model of docs/add-a-model.md: its text is compiled as it stands there (CMakeLists.txt).
#include "models/model.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {

std::vector<Model> widening_models();

namespace {

TEST_F(Pipeline, TheModelOfTheDocsTrainsWithItsOwnOption) {
  const std::vector<Model> models = widening_models();
  ASSERT_EQ(models.size(), 1u);
  EXPECT_TRUE(validate(std::vector{models[0].description}).empty());
  EXPECT_FALSE(options_for(models[0].description, {{"growth", "0"}}));
  const auto make = [&](const GivenOptions& given) {
    return *models[0].make(*options_for(models[0].description, given));
  };
  const LayeredModel model = make({{"growth", "2"}, {"image-size", "6"}, {"classes", "3"}});
  EXPECT_EQ(model.num_parameters(), 5 * 4 + 7 * 6 + 9 * 8 + 11 * 10 + 3 * 12);
  EXPECT_EQ(make({}).layers.back().layer->parameters()[0].shape, (Shape{10, 3 + 4 * 16}));
  const auto plan = [&](int stages) {
    return uniform_plan(model.name, model.layer_names(), stages, 1, 2, ScheduleKind::OneFOneB);
  };
  expect_equal(train(model, plan(2), options(2)), train(model, plan(1), options(2)), "2 stages");
}

}  // namespace
}  // namespace millrace
