from django.db import models


class Submission(models.Model):
    name = models.CharField(max_length=200)
    request_spec = models.JSONField()
    due_at = models.DateTimeField()

    class Meta:
        app_label = "bare_drf"

    def __str__(self) -> str:
        return self.name
