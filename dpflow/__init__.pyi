# Public names: `dpflow/__init__.py` loads each from its place here.

from dpflow.accounting.costs.base import Cost as Cost
from dpflow.accounting.costs.composed import Composed as Composed
from dpflow.accounting.costs.composed import Repeated as Repeated
from dpflow.accounting.costs.early_stopping import EarlyStopping as EarlyStopping
from dpflow.accounting.costs.noise import DiscreteGaussian as DiscreteGaussian
from dpflow.accounting.costs.noise import DiscreteLaplace as DiscreteLaplace
from dpflow.accounting.costs.noise import ExponentialMechanism as ExponentialMechanism
from dpflow.accounting.costs.noise import Gaussian as Gaussian
from dpflow.accounting.costs.noise import Laplace as Laplace
from dpflow.accounting.costs.noise import (
    PoissonSampledGaussian as PoissonSampledGaussian,
)
from dpflow.accounting.costs.noise import RandomizedResponse as RandomizedResponse
from dpflow.accounting.costs.notions import ZCDP as ZCDP
from dpflow.accounting.costs.notions import ApproxDP as ApproxDP
from dpflow.accounting.costs.notions import PureDP as PureDP
from dpflow.accounting.costs.outcomes import OutputDP as OutputDP
from dpflow.accounting.costs.refined import Refined as Refined
from dpflow.accounting.costs.sparse_vector import SparseVector as SparseVector
from dpflow.answers.derived import answer as answer
from dpflow.answers.derived import consistent as consistent
from dpflow.bounding.contributions import Clip as Clip
from dpflow.bounding.contributions import Contributions as Contributions
from dpflow.exceptions import BudgetExhausted as BudgetExhausted
from dpflow.exceptions import BudgetRefused as BudgetRefused
from dpflow.exceptions import DpflowError as DpflowError
from dpflow.exceptions import DPStepFailed as DPStepFailed
from dpflow.exceptions import LoadFailed as LoadFailed
from dpflow.forecast.what_if import forecast as forecast
from dpflow.guard.iterations import iterations as iterations
from dpflow.guard.plain import guarded as guarded
from dpflow.guard.plain import spend as spend
from dpflow.guard.release import release as release
from dpflow.noise.accuracy import Estimate as Estimate
from dpflow.noise.accuracy import IntEstimate as IntEstimate
from dpflow.policy import Policy as Policy
from dpflow.policy import load_policy as load_policy
from dpflow.prefect.flow import dp_flow as dp_flow
from dpflow.prefect.loader import private_task as private_task
from dpflow.prefect.task import dp_task as dp_task
from dpflow.show.history import history as history
from dpflow.show.status import status as status
from dpflow.show.why import why as why

__version__: str
