// The surface of the command line: every verb with its options, in the order of help. A new option
// is a line here, too.
#include "cli/commands/verbs.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/daemon/man_page.h"
#include "gtest/gtest.h"

namespace tercio::cli {
namespace {

constexpr char kSurface[] =
    R"(run -o,--output job_file --set --ranks --state-dir --trace --trace-step
resume -o,--output REACH --state-dir job --set --accept-data-change --accept-change --from-step
submit -o,--output REACH job_file --set --watch
list -o,--output REACH --state-dir
get -o,--output REACH --state-dir job
watch -o,--output REACH --state-dir job --plain
wait -o,--output REACH job --timeout
history -o,--output REACH --state-dir job --all-attempts -f,--follow
events -o,--output REACH --state-dir job -f,--follow
logs -o,--output REACH --state-dir job --rank --since --level --attempt --tail -f,--follow
cancel -o,--output REACH --state-dir job --no-save
delete -o,--output REACH job --checkpoints
drill -o,--output REACH job --fault --rank --seconds --timeout
nodes -o,--output REACH
nodes drain -o,--output REACH node
nodes undrain -o,--output REACH node
nodes release -o,--output REACH node
plot REACH --state-dir jobs -o --output --metric --x --smooth --log
diff -o,--output REACH --state-dir jobs
report REACH --state-dir jobs -o --output
compare -o experiment_file --output --repeat --allow-different --state-dir REACH
tune -o job_file --set --output --budget --steps
checkpoint -o,--output
checkpoint list -o,--output REACH --state-dir job
checkpoint verify -o,--output REACH --state-dir job --step
checkpoint prune -o,--output REACH --state-dir job --keep-last --dry-run
checkpoint now -o,--output REACH --state-dir job --timeout
checkpoint import directory --base -o --output --format
checkpoint export REACH --state-dir job --step -o --output --format --max-shard-size --merge --dtype --tensor --pipeline --layout
login -o,--output REACH --token-file --token --enroll --check
data -o,--output
data tokenize --input --tokenizer --output --threads --text-key --skip-bad-lines --append-eod --split-sentences
data inspect -o,--output prefix --text-key
data preview -o,--output job_file --set --samples --first
plan -o,--output REACH --state-dir job_file --set --job --ranks --cluster --what-if --explain --compare --tokens --scale --weak --largest --simulate --seed --svg --timeline --effective --explain-tensors --program
generate -o,--output --checkpoint --context --tokenizer --prompt --prompt-ids --prompts --batch --tokens --temperature --top-k --top-p --seed --start-id --end-id
evaluate -o,--output --checkpoint --context --tokenizer --data --metric --text-key --text-pair-key --label-key --job --stride --write-logits --top-k
serve checkpoint --context --tokenizer --listen --model-name --adapter --template --slots --cache-tokens --max-queue --max-body --max-connections --grace --api-key-file --tls-cert --tls-key --tls-ca --insecure
completion -o,--output shell
doctor -o,--output REACH --state-dir --measure --threads --device --node
version -o,--output
)";

void Describe(const CLI::App& verb, const std::string& name, std::string* out) {
  std::string line = name;
  for (const CLI::Option* option : verb.get_options()) {
    if (option == verb.get_help_ptr() || option == verb.get_help_all_ptr()) continue;
    absl::StrAppend(&line, " ", option->get_name(/*positional=*/false, /*all_options=*/true));
    EXPECT_FALSE(option->get_description().empty()) << line;
  }
  absl::StrAppend(out, line, "\n");
  EXPECT_FALSE(verb.get_description().empty()) << name;
  EXPECT_NE(verb.get_footer().find("Example:\n  tercio "), std::string::npos) << name;
  for (const CLI::App* child : VerbsOf(verb)) {
    Describe(*child, absl::StrCat(name, " ", child->get_name()), out);
  }
}

TEST(Verbs, HaveTheseOptions) {
  CommandLine line("tercio 1");
  DeclareVerbs(line);
  std::string surface;
  for (const CLI::App* verb : VerbsOf(line.app())) Describe(*verb, verb->get_name(), &surface);
  const std::string reach = " --coordinator --tls-cert --tls-key --tls-ca";
  for (size_t at = surface.find(reach); at != std::string::npos; at = surface.find(reach)) {
    surface.replace(at, reach.size(), " REACH");
  }
  EXPECT_EQ(surface, kSurface);
}

}  // namespace
}  // namespace tercio::cli
