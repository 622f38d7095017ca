"""The tolerance that a diagnostic attention is held to, which an exact one does without."""

# |actual - reference| <= ABSOLUTE + RELATIVE * |reference|
ABSOLUTE = RELATIVE = 2e-5
