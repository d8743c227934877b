"""Trains data-parallel over Ray actors whose number changes while training goes on.

    class Task:                                  # anything with these four functions
        def make_model(self): ...
        def make_optimizer(self, model): ...
        def rows(self, step): ...                # which rows a step trains on: of its number alone
        def loss(self, model, indices): ...      # one loss a row

    ray.init()
    with ElasticTrainer(Task(), Path("run"), width=1) as trainer:
        trainer.set_width(2)                     # from any thread; training goes on meanwhile
        result = trainer.train(n_steps=1000)

A step is committed in two phases. Each member computes its share of the step's rows and all sum
their gradients; only when every one of them has answered, the step counts, and the order to apply
it rides on the call of the next step. When a member dies before that, nobody has applied the step:
the survivors drop their gradients, join in a new process group, and compute the same rows again.
So no step and no row is lost or doubled, whenever anything dies. The loss is the sum over a step's
rows over their number, or over a weight of the task's own, at any width. Where each row's loss is
computed from that row alone, only the order of the sums differs between widths. It is otherwise
with layers that mix the rows of a micro-batch, such as BatchNorm, and with dropout, whose random
numbers are seeded by micro-batch: where those begin depends on the width.

`task` says what is trained, `member` is what one process does, `groups` are the process groups,
`reduction` sums over them, `state` is what passes from a member to those who join, `checkpoints`
are the files and `saving` writes them beside the training. `crew` holds the actors and waits for
them, `driver` has them compute steps, `switch` gets joiners ready beside the training, `wishes`
and `steering` know which width is wanted, `log` what has happened, and `trainer` puts all of it
together.

Why this is no wrapper of a library. torchft 0.2.0 gives membership by the step, and loses rows: its
own sampler is documented as "inherently lossy", since a batch is dropped when a group rejoins and
the rows of a group that is down are never trained on; whether a step is applied may differ between
its groups; and a server of its own, the lighthouse, has to run beside the training. Ray Train
2.60 with ``ScalingConfig(num_workers=(min, max))`` changes its width by ending all workers and
starting new ones from the last checkpoint, so that training stands still while they load, and
what was trained since that checkpoint is trained again. Membership here is Ray's knowledge of its
actors, and process groups are torch.distributed's, made without its one global group, so that the
next group can be made while the last one is in use.
"""
