"""The simulator on which placement policies are trained, compared and explained.

    scenario   what runs on what, how lengths vary, who else uses the cards
    trace      episodes: everything that chance decides, drawn beforehand
    simulation one episode or many side by side, decision by decision
    env        the same as a Gymnasium environment
    batched    the same as a stable-baselines3 vector environment
    events     an independent event-driven check of the stage function

Times, power, joules, queue and barrier come from `ecorl.stages.iteration.advance`, the one function
that the run's look-ahead and the planners use as well.
"""
