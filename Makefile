# `make demo` and `make test` are all that a newcomer needs: they install what is missing (Debian, Ubuntu), build and run.
# `make help` lists the others.
JOBS ?= $(shell nproc)
DRAWS ?= 2000
HOURS ?= 6
damages: DAMAGES ?= 40
test-memory: DAMAGES ?= 1000
PREFIX ?= /usr/local
SECONDS ?= 60
build = cmake --build --preset release -j $(JOBS)
# $(call python,NAME,FILE): a virtual environment build/NAME with the packages of a requirements file
python = scripts/install_dependencies.sh python3-venv && (test -x build/$(1)/bin/pip || python3 -m venv build/$(1)) && build/$(1)/bin/pip install -q -r $(2)
sources = $(shell find src tests bench -name '*.cpp' -o -name '*.h' -o -name '*.cu')
# `make lint TIDY=src/passes/shard.cpp` for one file.
TIDY ?= $(shell find src -name '*.cpp')

.PHONY: demo test papers record install package test-deb test-newcomer test-clang bench bench-peers bench-tokenizers test-peers test-tokenizers test-parquet test-report test-tensorboard test-followers test-torchtitan wheel-test test-slurm test-late test-memory cluster cluster-failures cluster-islands cluster-partitions cluster-peers convergence crash soak damages fuzz fuzz-inputs sanitize valgrind hip gpu-bundle gpu-architectures large build-cost format lint clean help configure

demo:                 ## two minutes of training, from text on this machine; a first build is for this machine's processor only
	scripts/install_dependencies.sh
	cmake --preset release $(if $(wildcard build/release/CMakeCache.txt),,-DLOCKSTEP_ISA=native)
	$(build) --target lockstep
	scripts/demo.sh build/release/lockstep

test: configure       ## all tests
	$(build)
	ctest --test-dir build/release --output-on-failure -j3  # of two cores: many tests wait

install: configure    ## into PREFIX (/usr/local): the program, recipes, clusters, documents, completion, manual page
	$(build) --target lockstep
	cmake --install build/release --prefix $(PREFIX)

package: configure    ## build/release/lockstep_VERSION_ARCH.deb
	scripts/install_dependencies.sh dpkg-dev file
	$(build) --target lockstep
	cd build/release && cpack -G DEB

test-deb: package     ## that package installed and run in a bare Debian of its own (debootstrap); as root
	scripts/install_dependencies.sh debootstrap
	tests/packaging/deb.sh build/release/lockstep_*.deb

test-newcomer:        ## `make demo` and `make test` of the last commit in a bare Debian of its own (debootstrap); as root; most of an hour
	scripts/install_dependencies.sh debootstrap
	tests/packaging/newcomer.sh

test-clang: configure ## all tests, built by clang, warnings being errors; its programs are compared with those of the usual build
	scripts/install_dependencies.sh clang libomp-dev
	cmake --preset clang
	cmake --build --preset clang -j $(JOBS)
	ctest --test-dir build/clang --output-on-failure -j2
	$(build) --target lockstep
	tests/same_programs.sh build/release/lockstep build/clang/lockstep

bench: configure      ## kernels and collectives against their floors, growth, recompute, planned steps beside measured ones, checkpoints
	cmake --preset release -DLOCKSTEP_BENCH=ON
	$(build) --target benchmarks
	build/release/bench/kernels_bench
	build/release/bench/comm_bench
	build/release/bench/schedules_bench
	build/release/bench/compile_bench
	$(build) --target lockstep
	build/release/lockstep bench --out build/this_machine.toml
	python3 bench/plan/compare.py build/release/lockstep --cluster build/this_machine.toml
	python3 bench/plan/layouts.py build/release/lockstep --cluster build/this_machine.toml
	python3 bench/recompute.py build/release/lockstep --cluster build/this_machine.toml
	python3 bench/growth.py build/release/lockstep
	build/release/bench/checkpoint_bench build/bench-checkpoint
	python3 bench/fusions.py build/release/lockstep
	python3 bench/async_tensor_parallel.py build/release/lockstep
	python3 bench/async_tensor_parallel.py build/release/lockstep --shard 2
	python3 bench/context.py build/release/lockstep

bench-peers: configure  ## the same training step in eager PyTorch, alternately; needs PyPI
	$(build) --target lockstep
	$(call python,peers,bench/peers/requirements.txt)
	build/peers/bin/python bench/peers/compare.py build/release/lockstep

bench-tokenizers: configure  ## encoding on two threads beside tiktoken with the same merges, alternately; needs PyPI
	cmake --preset release -DLOCKSTEP_BENCH=ON
	$(build) --target tokenizer_bench
	$(call python,tokenizers,tests/peers/tokenizer_requirements.txt)
	build/tokenizers/bin/python bench/peers/tokenizer_speed.py build/release/bench/tokenizer_bench

test-peers: configure   ## models in and out against Hugging Face transformers, optimizers against torch.optim; needs PyPI
	$(build) --target lockstep
	$(call python,transformers,tests/peers/requirements.txt)
	build/transformers/bin/python tests/peers/optimizers.py build/release/lockstep
	build/transformers/bin/python tests/peers/hugging_face.py build/release/lockstep

test-tokenizers: configure  ## token ids of a dozen model families' tokenizers beside Hugging Face's, on tricky and random text; needs PyPI
	$(build) --target lockstep
	$(call python,tokenizers,tests/peers/tokenizer_requirements.txt)
	build/tokenizers/bin/python tests/peers/tokenizer_families.py build/release/lockstep

test-parquet: configure  ## several hundred Parquet files as pyarrow writes them, every document beside what pyarrow reads; needs PyPI
	$(build) --target lockstep
	$(call python,parquet,tests/data/parquet/requirements.txt)
	build/parquet/bin/python tests/data/parquet/make_parquet.py compare build/release/lockstep

test-report: configure  ## the pages of `report`, `plan` and `tune --html` in a headless Chromium; screenshots in build/report; needs PyPI
	scripts/install_dependencies.sh chromium chromium-driver
	$(build) --target lockstep
	$(call python,page,tests/report/requirements.txt)
	build/page/bin/python tests/report/page.py build/release/lockstep

test-tensorboard: configure  ## TensorBoard itself reads what `train` writes for it; needs PyPI
	$(build) --target lockstep
	$(call python,tensorboard,tests/report/tensorboard_requirements.txt)
	build/tensorboard/bin/python tests/report/tensorboard_files.py build/release/lockstep

test-followers: configure  ## the followers of a run with wandb and mlflow themselves, offline; needs PyPI
	$(build) --target lockstep
	$(call python,followers,tests/report/followers_requirements.txt)
	build/followers/bin/python tests/report/followers.py build/release/lockstep

test-torchtitan: configure  ## torchtitan's own recipes: DIR=a checkout of torchtitan v0.2.2
	$(build) --target lockstep
	@if [ -z "$(DIR)" ]; then echo "SKIPPED: no recipes were read. Give a checkout of torchtitan v0.2.2: make test-torchtitan DIR=/path/to/torchtitan"; \
	else python3 tests/peers/torchtitan.py build/release/lockstep "$(DIR)"; fi

wheel-test: configure   ## `pip install .` into a fresh virtual environment build/wheel; the program and the module there; needs PyPI
	$(build) --target lockstep
	scripts/install_dependencies.sh python3-venv
	rm -rf build/wheel && python3 -m venv build/wheel
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/wheel/bin/pip install . mypy ml_dtypes
	tests/packaging/wheel.sh build/wheel
	LOCKSTEP_BINARY=build/release/lockstep build/wheel/bin/python tests/python/library_test.py installed

test-slurm: configure   ## the batch script under a Slurm of one node, started for it; as root
	scripts/install_dependencies.sh slurm-wlm munge
	$(build) --target lockstep
	tests/cluster/slurm.sh build/release/lockstep

cluster: configure      ## what ranks send on an emulated cluster of 4 hosts, beside the plan; use of the links; overlap; as root
	scripts/install_dependencies.sh iproute2
	$(build) --target lockstep
	tests/cluster/cluster_test.sh
	tests/cluster/cluster.sh 4 200mbit tests/cluster/traffic.py build/release/lockstep

cluster-failures: configure  ## ranks and hosts of that cluster killed, stopped and cut off under `lockstep launch`, each 20 times; as root
	scripts/install_dependencies.sh iproute2
	$(build) --target lockstep
	tests/cluster/cluster.sh 4 200mbit tests/cluster/failures.py build/release/lockstep

cluster-islands: configure  ## islands of that cluster, each a job of its own, killed, stopped and cut off; as root
	scripts/install_dependencies.sh iproute2
	$(build) --target lockstep
	tests/cluster/cluster.sh 4 200mbit tests/cluster/island_failures.py build/release/lockstep

cluster-partitions: configure  ## low-bandwidth partitionings by turns on that cluster, beside plans and PyTorch; goes on where it was stopped; as root; needs PyPI; an hour
	scripts/install_dependencies.sh iproute2
	$(build) --target lockstep
	$(call python,peers,bench/peers/requirements.txt)
	tests/cluster/cluster.sh 4 200mbit build/peers/bin/python tests/cluster/partitions.py build/release/lockstep

convergence: configure  ## 1,000 steps with int8, int4, islands, float8 and bfloat16 moments against exact ones, three seeds each; goes on where it was stopped; four hours
	$(build) --target lockstep
	python3 tests/convergence/convergence.py build/release/lockstep

cluster-peers: configure  ## FSDP and HSDP beside PyTorch's over gloo on that cluster, alternately; as root; needs PyPI
	scripts/install_dependencies.sh iproute2
	$(build) --target lockstep
	$(call python,peers,bench/peers/requirements.txt)
	tests/cluster/cluster.sh 4 200mbit build/peers/bin/python tests/cluster/peers.py build/release/lockstep

accuracy: configure   ## plans held against data/published_runs.csv: writes the tables of docs/accuracy.md; two minutes
	$(build) --target lockstep
	build/release/lockstep calibrate --rows data/published_runs.csv --leave-out --json > build/accuracy.json
	build/release/lockstep calibrate --rows data/unfitted_runs.csv --no-fit --json > build/unfitted.json
	python3 scripts/accuracy.py build/accuracy.json build/unfitted.json docs/accuracy.md

papers: configure     ## what publications measured, planned: writes the tables of docs/papers.md; a minute
	$(build) --target lockstep
	python3 scripts/papers.py build/release/lockstep data/papers.toml docs/papers.md

record: configure     ## losses, norms and memory of 36 small runs, bit by bit, beside those of tests/record/record.json; a minute
	$(build) --target lockstep
	python3 tests/record/record.py build/release/lockstep

crash: configure      ## training killed at every write of a save and at random moments; needs strace
	scripts/install_dependencies.sh strace
	$(build) --target lockstep
	scripts/crash.py build/release/lockstep

soak: configure       ## HOURS of training under launch with a fault every minute, one job and then islands
	$(build) --target lockstep
	scripts/soak.py build/release/lockstep --hours $(HOURS)
	scripts/soak.py build/release/lockstep --hours $(HOURS) --islands

fuzz: configure       ## random layouts against one rank, and once more all of them in float8
	$(build)
	LOCKSTEP_DRAWS=$(DRAWS) build/release/tests/lockstep_tests --gtest_filter='Equivalence*'
	LOCKSTEP_DRAWS=$(DRAWS) LOCKSTEP_FLOAT8=1 LOCKSTEP_SEED=1000000 build/release/tests/lockstep_tests --gtest_filter='Equivalence.EveryLayoutTrainsAsOneRankFloat64'
	LOCKSTEP_DRAWS=$(DRAWS) ctest --test-dir build/release -R EquivalenceMpi --verbose

damages: configure    ## damaged programs: none that check accepts may train something else; DAMAGES of each kind
	$(build) --target lockstep_tests
	LOCKSTEP_DAMAGES=$(DAMAGES) build/release/tests/lockstep_tests --gtest_filter='Meaning.What*'

fuzz-inputs:          ## every parser of a user's file under libFuzzer, address and undefined-behaviour sanitizer, SECONDS each; clang
	scripts/install_dependencies.sh clang libclang-rt-dev
	cmake --preset fuzz
	cmake --build --preset fuzz -j $(JOBS)
	tests/fuzz/run.sh build/fuzz $(SECONDS)

# Unit tests, random layouts, careless input (the presets say which folders). Under the thread sanitizer only suites that run ranks and do not call
# oneDNN, whose threads (OpenMP) it does not know.
sanitize: configure   ## tests under the address, undefined-behaviour and thread sanitizers; an hour on two cores
	cmake --preset asan && cmake --build --preset asan -j $(JOBS) --target lockstep_tests lockstep_mpi_tests
	LOCKSTEP_DRAWS=12 ctest --test-dir build/asan --output-on-failure -j $(JOBS) -E 'Mpi|Cli|CarelessTable'
	ASAN_OPTIONS=detect_leaks=0 LOCKSTEP_DRAWS=12 ctest --test-dir build/asan --output-on-failure -j $(JOBS) -R 'Mpi|CarelessTable'  # MPI's own leaks
	cmake --preset tsan && cmake --build --preset tsan -j $(JOBS) --target lockstep_tests
	TSAN_OPTIONS=halt_on_error=1 LOCKSTEP_DRAWS=12 ctest --test-dir build/tsan --output-on-failure -j $(JOBS) \
	    -R '^(Equivalence|EquivalenceResume|Saver|.*/Comm.*|Comm(Local|Processes|TransferAttended)|ProcessGroup|EquivalenceProcesses|Flight|Replicas|ThreadPool|Step|Watchdog|Device(Scheduler|Late)|EquivalenceLateDevice)(\.[0-9]+)?$$'

valgrind: configure   ## training in two processes under valgrind: nothing is read that was never written
	scripts/install_dependencies.sh valgrind
	$(build) --target lockstep
	tests/valgrind/run.sh build/release/lockstep

# Suites that run recipes in one process. What they compare with has nothing to do with devices, or runs on the same one.
late = LOCKSTEP_TEST_DEVICE=late LOCKSTEP_DRAWS=$(or $(DRAWS),80)
late_suites = Cases/Golden*:Golden/*:Equivalence.*:EquivalenceResume.*:*Generation*:RandomSchedules.TrainAsOneRank:*FusedKernels*:Precision*:*MixedPrecision*:*LossScale*:Step.*:Saver.*:*Optimizers*:OptimizerStates*

test-late: configure    ## the suites of layouts on the second device, whose queues run late and in any order; DRAWS=80
	$(build) --target lockstep_tests
	$(late) build/release/tests/lockstep_tests --gtest_filter='$(late_suites)'

test-memory: configure  ## damaged programs against a shadow of the executor, DAMAGES=1000 of each of 23 kinds; ten minutes
	$(build) --target lockstep_tests
	LOCKSTEP_MEMORY_DAMAGES=$(DAMAGES) build/release/tests/lockstep_tests --gtest_filter='CheckMemorySweep.*'

hip:                  ## compiles the kernels of GPUs for AMD's gfx90a, without one; installs 350 MB; two minutes
	scripts/install_dependencies.sh hipcc libamdhip64-dev rocm-device-libs
	mkdir -p build/hip
	ls src/kernels/gpu/*.cu | xargs -P $(JOBS) -I {} sh -c 'echo {} && hipcc --offload-arch=gfx90a -O3 -std=c++20 -Wall -Werror -Isrc -x hip -c {} -o build/hip/$$(basename {}).o'

gpu-bundle: configure  ## scripts/gpu_check.sh and what it runs, for a bare machine with a GPU: build/release/lockstep_gpu_check.tar.xz; needs CUDA's toolkit
	$(build) --target lockstep lockstep_tests lockstep_cuda_all
	scripts/gpu_bundle.sh build/release build/release/lockstep_gpu_check.tar.xz

gpu-architectures:    ## compiles the kernels of GPUs for each compute capability that the module serves, without a GPU; needs nvcc; twenty minutes
	tests/kernels/gpu_compile.py . --arch 80 86 89 90a 100 120

build-cost:           ## core-seconds of a build from nothing without ccache, of the program and of all tests, RUNS=1; half an hour
	scripts/install_dependencies.sh
	scripts/build_cost.sh $(JOBS) $(or $(RUNS),1)

large: configure      ## collectives over more than 2^31 elements between two processes; 9 GiB of memory
	$(build) --target lockstep_mpi_tests
	mpirun --allow-run-as-root --oversubscribe --bind-to none -n 2 build/release/tests/lockstep_mpi_tests 1 --gtest_also_run_disabled_tests \
	    --gtest_filter='DISABLED_Large*'

format:               ## formats the code
	scripts/install_dependencies.sh clang-format
	clang-format -i $(sources)

lint: configure       ## clang-tidy over src/; a quarter of an hour on two cores
	scripts/install_dependencies.sh clang-tidy
	cmake --preset debug  # which names the command of each file
	printf '%s\n' $(TIDY) | xargs -P $(JOBS) -n 4 clang-tidy --quiet --extra-arg=-Wno-unknown-warning-option -p build/debug

clean:                ## what was built; outputs/ stays
	rm -rf build

help:                 ## this list
	@awk -F ':.*## *' '/^[a-z-]+:.*##/ { printf "%-18s %s\n", $$1, $$2 }' Makefile

configure:
	scripts/install_dependencies.sh
	cmake --preset release -DLOCKSTEP_ISA=all
