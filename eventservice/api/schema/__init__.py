"""The documents of the API, each declared once as a Pydantic model.

A declaration validates a request and describes it in the OpenAPI document; the console's forms, the admin and the
commands validate with the same models. Responses are built from models too, which OpenAPI describes.
"""
